# A recipe for Spack: copy this folder to packages/ivyrun of a repository of yours (spack repo create), then
# `spack install ivyrun`.
from spack.package import *


class Ivyrun(CMakePackage):
    """One command starts one worker per accelerator on every host, and says who failed first and why."""

    git = "file:///path/to/ivyrun"
    license("Apache-2.0")
    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("boost@1.81")
    depends_on("cli11")
    depends_on("spdlog")
    depends_on("fmt")
    depends_on("libssh")
    depends_on("openssl@3: +shared")
    depends_on("zlib-api")
    depends_on("zstd libs=static programs=True")
    depends_on("protobuf@3.21")
    depends_on("grpc@1.51 +shared")
    depends_on("tomlplusplus")
    depends_on("libarchive")
    depends_on("hwloc")
    depends_on("pmix")
    depends_on("python@3.11:", type=("build", "run"))

    generator("ninja")

    def cmake_args(self):
        return [self.define("IVY_TESTS", False), self.define("IVY_UNITY", True)]
