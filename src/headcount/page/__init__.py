"""The parts of a report: what run folders found, as maps, charts, tables and sections. `reports` puts them on a page."""
