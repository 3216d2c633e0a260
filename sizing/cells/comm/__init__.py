"""The time of collectives over a link: tables, measured or imported."""
