"""`bft-driver`: the program that an elastic job's script names on its first line."""

from bftd import own_packages


def main() -> None:
    """Run the driver."""
    own_packages.find_first()
    from elastic.driver.main import main as driver

    driver()
