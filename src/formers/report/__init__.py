"""Runs and comparisons as one self-contained HTML file."""

from formers.report.page import report_page
from formers.report.read import Recorded, read_reports

__all__ = ["Recorded", "read_reports", "report_page"]
