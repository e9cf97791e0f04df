"""The lab: run records, tables, figures and reports."""
