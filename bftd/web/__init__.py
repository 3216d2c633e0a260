"""The web page: a status and a history as one self-contained HTML file."""
