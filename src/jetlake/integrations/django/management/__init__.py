"""Management commands of Django projects."""
