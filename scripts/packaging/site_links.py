"""A hook of MkDocs: links out of docs/ lead to files of the source tree, which are not on the site."""

import re


def on_page_markdown(markdown, page, config, files):
    return re.sub(r"\[([^\]\n]+)\]\((\.\./[^)\s]+)\)", r"\1 (`\2` in the source tree)", markdown).replace("(`../", "(`")
