"""The time of a step: by data sheets, corrected by checks on a GPU."""
