# SPDX-License-Identifier: Apache-2.0
"""unpack_wheel.py WHEEL PREFIX: installs the programs and data files of ivyrun's wheel below PREFIX, as pip would, on
machines without pip. Does not install ivycomm for programs other than ivyrun's workers."""

import os
import re
import sys
import zipfile


def main(wheel, place):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            belongs = re.match(r"^[^/]+\.data/(scripts|data)/(.+)$", entry.filename)
            if not belongs:
                continue
            path = os.path.join(place, "bin" if belongs[1] == "scripts" else "", belongs[2])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(archive.read(entry))
            os.chmod(path, entry.external_attr >> 16 & 0o777)


main(*sys.argv[1:])
