"""Errors, commands, files, text, the forms of numbers and the view of a status, which all of bftd uses."""
