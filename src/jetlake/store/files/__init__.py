"""Files and folders: the disk that is passed in, atomic replacement, own names, removal in steps."""
