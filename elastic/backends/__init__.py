"""What trains: a folder for each back-end."""
