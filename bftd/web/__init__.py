"""The web page: a status and a history made into one self-contained HTML file."""
