"""Commands on traces and problems in files; they touch nothing that runs."""
