"""The papers' schedulers and simulators, which no site installs: `python -m studies.crius`, `studies.synergy`."""
