"""The page: HTML, CSS and JavaScript that the explorer serves and that every offline page holds."""

from regard.page.offline import FOLDER, PageFile, offline_page, page_files, saved

__all__ = ["FOLDER", "PageFile", "offline_page", "page_files", "saved"]
