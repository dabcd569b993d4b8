# SPDX-License-Identifier: Apache-2.0
# A recipe for Spack, which scripts/package spack fills in and puts into a repository of its own. It unpacks the
# tarball: from the sources ivyrun wants static and shared libraries side by side, which Spack's packages have not.
from spack.package import *


class Ivyrun(Package):
    """Starts distributed jobs with one command, and reports which rank failed first and why."""

    url = "file://@TARBALL@"
    license("Apache-2.0")
    version("@VERSION@", sha256="@SHA256@")

    requires("platform=linux")
    requires("target=@MACHINE@:")

    sanity_check_is_file = ["bin/ivyrun", "bin/ivyctl", "lib/libivycomm.so.1", "include/ivycomm.h"]

    def setup_run_environment(self, env):
        # For programs that ivyrun does not start: those that it starts have it anyway.
        env.prepend_path("PYTHONPATH", self.prefix.lib.ivyrun.python)

    def install(self, spec, prefix):
        # Says in one line what is wrong: another machine, an older C library, a copy that is not whole.
        Executable("./verify")()
        install_tree(".", prefix, symlinks=True)
