"""The value of --elastic, and the script that it is written into."""
