"""The page: HTML, CSS and JavaScript that the explorer serves and that every offline page holds."""

from regard.page.bundle import FOLDER, PageFile, page_files
from regard.page.offline import offline_page, saved

__all__ = ["FOLDER", "PageFile", "offline_page", "page_files", "saved"]
