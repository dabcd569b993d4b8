# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: replaces links to files outside docs/, which are not on the site, by their paths in the source tree."""

import os
import re


def on_page_markdown(markdown, page, config, files):
    folder = os.path.join("docs", os.path.dirname(page.file.src_uri))

    def named(link):
        path = os.path.normpath(os.path.join(folder, link[2].partition("#")[0]))
        return link[0] if path.startswith("docs/") else f"{link[1]} (`{path}` in the source tree)"

    return re.sub(r"\[([^\]\n]+)\]\((\.\./[^)\s]+)\)", named, markdown)
