# SPDX-License-Identifier: Apache-2.0
# The template of a Spack recipe; `scripts/package spack` fills it in and writes it to a repository. It unpacks the
# tarball, because a build from source needs static and shared libraries, which Spack's packages do not both have.
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
        # For programs that ivyrun does not start; ivyrun sets it for its workers.
        env.prepend_path("PYTHONPATH", self.prefix.lib.ivyrun.python)

    def install(self, spec, prefix):
        # Fails with a message for another architecture, an older glibc, or an incomplete copy.
        Executable("./verify")()
        install_tree(".", prefix, symlinks=True)
