# SPDX-License-Identifier: Apache-2.0
"""scripts/package: each package is installed in an environment without ivyrun and used."""

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from launching import BIN, REPOSITORY, pages_that_programs_name, seconds, wait_until

BUILD = os.path.dirname(BIN)
MOST_BYTES = 40_000_000
# Libraries that users' processes load. If the wheel was built with Zig (scripts/setup package), they also run on RHEL 8.
OLD_LIBRARIES = ("lib/libivycomm.so.1", "lib/libivycomm_jax.so", "lib/ivyrun/libivy_nccl_profiler.so")
WORLD = "import ivycomm as ic; ic.init(); print(ic.all_gather_object(ic.rank()), ic.__file__)"


def call(*command, cwd=None, limit=240):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=seconds(limit))
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def all_text(done):
    return done.out.decode(errors="replace") + done.err_text


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if not os.path.exists(os.path.join(BUILD, "build.ninja")) or shutil.which("cmake") is None:
        pytest.skip("IVY_BIN is not in a build tree")
    if os.path.realpath(BUILD) != os.path.realpath(os.path.join(REPOSITORY, "build")):
        pytest.skip("scripts/package takes the build in build/")
    call("cmake", "--build", BUILD, "--target", "ivy_portable")
    out = tmp_path_factory.mktemp("packages")
    call(os.path.join(REPOSITORY, "scripts/package"), "--native", "--no-build", "--out", str(out), "wheel", "tarball")
    yield out
    shutil.rmtree(out, ignore_errors=True)


@pytest.fixture(scope="module")
def environment(packages):
    """A Python environment in which only the wheel is installed."""
    place = packages / "venv"
    wheel, = packages.glob("ivyrun-*.whl")
    call(sys.executable, "-m", "venv", str(place))
    call(str(place / "bin/pip"), "install", "-q", "--no-index", "--disable-pip-version-check", str(wheel))
    return str(place)


def machine_of(path):
    return re.search(r"Machine: +(.*)", call("readelf", "--file-header", str(path)))[1]


@pytest.fixture(scope="module")
def packages_of_both(tmp_path_factory):
    """Packages for x86-64 and aarch64, built in one call."""
    if not os.path.exists(os.path.join(REPOSITORY, "build-arm64/portable/ivy_agent_portable")):
        pytest.skip("no build for aarch64 (scripts/setup arm64; scripts/package)")
    for build in (BUILD, os.path.join(REPOSITORY, "build-arm64")):
        call("cmake", "--build", build, "--target", "ivy_portable", limit=600)
    out = tmp_path_factory.mktemp("both")
    kinds = ["wheel", "tarball"] + (["deb"] if shutil.which("dh") else [])
    call(os.path.join(REPOSITORY, "scripts/package"), "--no-build", "--quick", "--out", str(out), *kinds)
    yield out
    shutil.rmtree(out, ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("machine, debian, elf", [("x86_64", "amd64", "X86-64"), ("aarch64", "arm64", "AArch64")])
def test_packages_of_each_architecture_serve_hosts_of_both(packages_of_both, tmp_path, machine, debian, elf):
    wheel, = packages_of_both.glob(f"ivyrun-*-manylinux_2_34_{machine}.whl")
    tarball, = packages_of_both.glob(f"ivyrun-*-linux-{machine}.tar.gz")
    trees = [tmp_path / "wheel", tmp_path / "tarball"]
    call(sys.executable, os.path.join(REPOSITORY, "scripts/packaging/unpack_wheel.py"), str(wheel), str(trees[0]))
    trees[1].mkdir()
    call("tar", "-xf", str(tarball), "-C", str(trees[1]), "--strip-components", "1")
    if shutil.which("dh"):
        for package in packages_of_both.glob(f"*_{debian}.deb"):
            call("dpkg-deb", "--extract", str(package), str(tmp_path / "deb"))
        trees.append(tmp_path / "deb/usr")
    bundles = set()
    for tree in trees:
        for program in ("bin/ivyrun", "bin/ivy-node", "bin/ivy-agent", "lib/ivyrun/ivycomm_calls.abi3.so"):
            assert elf in machine_of(tree / program), (tree, program)
        for name in ("bundle-x86_64.run", "bundle-aarch64.run"):
            digest, _, _, size, build = (tree / f"lib/ivyrun/{name}.sha256").read_text().split()
            content = (tree / "lib/ivyrun" / name).read_bytes()
            assert len(content) == int(size) and hashlib.sha256(content).hexdigest() == digest, tree
            bundles.add((name, digest, build))
        assert list((tree / "share/man/man1").glob("ivyrun.1*")), tree
    assert len(bundles) == 2 and len({build for _, _, build in bundles}) == 1, bundles


def test_the_wheel_fits_every_system_of_its_tag(packages):
    wheel, = packages.glob("ivyrun-*.whl")
    assert "-py3-none-manylinux_2_34_" in wheel.name, wheel
    assert wheel.stat().st_size <= MOST_BYTES, wheel.stat().st_size
    auditwheel = os.path.join(BUILD, "auditwheel/bin/auditwheel")
    if not os.access(auditwheel, os.X_OK):
        pytest.skip("no auditwheel (scripts/setup package); scripts/package has checked every file itself")
    said = call(auditwheel, "show", str(wheel))
    assert "consistent with the following platform tag" in " ".join(said.split()), said


def test_libraries_of_the_wheel_load_on_an_older_system(packages, tmp_path):
    if not os.access(os.path.join(BUILD, "zig/bin/python"), os.X_OK):
        pytest.skip("no Zig (scripts/setup package): the libraries need glibc 2.34")
    wheel, = packages.glob("ivyrun-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in OLD_LIBRARIES:
            inside, = (entry for entry in archive.namelist() if entry.endswith(".data/data/" + name))
            path = archive.extract(inside, tmp_path)
            needed = re.findall(r"GLIBC_(\d+)\.(\d+)", call("readelf", "--version-info", "--wide", path))
            assert needed and max((int(major), int(minor)) for major, minor in needed) <= (2, 28), (name, needed)


@pytest.mark.parametrize("tag", ["manylinux_2_34_sparc64", "manylinux_2_999_x86_64"])
def test_a_wheel_of_another_system_is_rejected(environment, packages, tmp_path, tag):
    wheel, = packages.glob("ivyrun-*.whl")
    other = tmp_path / re.sub(r"manylinux_2_34_\w+", tag, wheel.name)
    os.link(wheel, other)
    done = subprocess.run([f"{environment}/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check",
                           "--force-reinstall", str(other)], capture_output=True, text=True, timeout=seconds(60))
    assert done.returncode != 0 and "is not a supported wheel on this platform" in done.stderr, done


def test_a_job_of_the_wheel(local, environment):
    done = local.run_program(f"{environment}/bin/ivyrun", "--fake-hosts", "2", "--nproc-per-node", "1",
                             f"{environment}/bin/python", "-B", "-c", WORLD, limit=60)
    assert done.code == 0 and sorted(done.texts_by_rank()) == [0, 1], done
    assert b"[0, 1] " + environment.encode() in done.out, done


def test_the_programs_of_the_wheel(local, environment):
    for name in ("ivyrun", "ivyctl", "ivy-agent", "ivy-rendezvous", "ivy-node"):
        done = local.run_program(f"{environment}/bin/{name}", "--version")
        assert done.code == 0 and done.out_lines[0].startswith(name), done
    done = local.run_program(f"{environment}/bin/ivyctl", "ps")
    # Other tests may run jobs at the same time.
    assert done.code == 0 and ("no running jobs" in all_text(done) or done.out.startswith(b"JOB")), done


def test_packages_have_the_pages_that_programs_name(environment, packages):
    pages = {f"share/doc/ivyrun/docs/{page}" for page in pages_that_programs_name()}
    assert not [page for page in pages if not os.path.exists(f"{environment}/{page}")]
    archive, = packages.glob("ivyrun-*.tar.gz")
    with tarfile.open(archive) as tarball:
        assert pages <= {name.partition("/")[2] for name in tarball.getnames()}


def test_the_wheels_package_without_ivyrun(local, environment):
    done = local.run_program(f"{environment}/bin/python", "-B", "-c", WORLD)
    assert done.code == 0 and done.out_lines[0].startswith(f"[0] {environment}/lib/python3"), done


def test_the_wheel_leaves_nothing_when_it_is_removed(environment, packages):
    call(f"{environment}/bin/pip", "uninstall", "-q", "-y", "ivyrun")
    # pip does not remove directories that only contained directories.
    left = [path for path in glob.glob(f"{environment}/**/*ivy*", recursive=True)
            if not os.path.isdir(path) or os.listdir(path)]
    assert left == [], left


def test_the_tarball_runs_in_any_directory(local, packages):
    tarball, = packages.glob("ivyrun-*.tar.gz")
    call("tar", "-xf", str(tarball), "-C", local.directory)
    tree, = glob.glob(f"{local.directory}/ivyrun-*")
    bundle, = glob.glob(f"{tree}/lib/ivyrun/bundle-*.run")
    assert os.path.getsize(bundle) <= 5_500_000, "the bundle that is sent to a host is too large"
    assert "is complete and runs on this machine" in call(f"{tree}/verify")
    done = local.run_program(f"{tree}/bin/ivyrun", "-n", "2", "/usr/bin/python3", "-B", "-c", WORLD, limit=60)
    assert done.code == 0 and b"[0, 1] " + tree.encode() in done.out, done
    assert os.path.exists(f"{tree}/share/man/man1/ivyrun.1")
    assert os.path.exists(f"{tree}/share/doc/ivyrun/LICENSE")
    assert os.path.exists(f"{tree}/lib/systemd/system/ivy-agent@.service")


def unpack_debian_packages(packages, place):
    if not list(packages.glob("*.deb")):
        call(os.path.join(REPOSITORY, "scripts/package"), "--native", "--no-build", "--quick", "--out", str(packages), "deb")
    for package in packages.glob("*.deb"):
        call("dpkg-deb", "--extract", str(package), place)


@pytest.fixture(params=["tarball", "wheel", "deb"])
def installed(request, packages, testbed):
    """The directory of a package's programs, on the file system that all test hosts share."""
    if request.param == "deb" and shutil.which("dh") is None:
        pytest.skip("scripts/setup package installs debhelper")
    place = os.path.join(testbed.shared, f"package-{request.param}")
    os.mkdir(place)
    programs = "usr/bin" if request.param == "deb" else "bin"
    if request.param == "deb":
        unpack_debian_packages(packages, place)
    elif request.param == "tarball":
        tarball, = packages.glob("ivyrun-*.tar.gz")
        call("tar", "-xf", str(tarball), "-C", place, "--strip-components", "1")
    else:
        wheel, = packages.glob("ivyrun-*.whl")
        call("/usr/bin/python3", "-m", "venv", place)
        call(f"{place}/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", str(wheel))
    yield place.replace(testbed.shared, "/srv/ivyshared", 1) + "/" + programs
    shutil.rmtree(place)


def test_an_installed_agent_serves_a_job_of_the_installed_ivyrun(agents, installed):
    agent, = agents.prepare(2)
    agent.program = f"{installed}/ivy-agent"
    agent.start()
    done = agents.launcher.run_program(f"{installed}/ivyrun", "--transport", "agent", "-H", "node2", "-n", "2",
                                       "sh", "-c", "hostname", limit=60)
    assert done.code == 0 and sorted(text for _, _, text in done.labelled()) == ["node2", "node2"], done


def test_an_installed_ivyrun_reaches_a_host_by_ssh_and_ivyctl_explains_its_job(hosts, installed):
    script = hosts.file("wait.py", "import ivycomm as ic, time\nic.init()\nprint('ready', flush=True)\n"
                                   "time.sleep(600) if ic.rank() == 1 else ic.barrier()\n")
    with hosts.start_program(f"{installed}/ivyrun", "--transport", "ssh", "-H", "node1,node2", "--nproc-per-node", "1",
                             "--python", "/usr/bin/python3", script) as run:
        run.wait_for("ready", count=2)

        def explains():
            done = hosts.run_program(f"{installed}/ivyctl", "why", limit=60)
            assert done.code == 0, done
            return "barrier" in all_text(done) and "rank 1" in all_text(done)
        # Rank 0 enters the barrier only after printing.
        wait_until(explains, seconds(10), "ivyctl why names the barrier and rank 1")
        done = hosts.run_program(f"{installed}/ivyctl", "stop", limit=60)
        assert done.code == 0, done
        run.finish()


def test_spack_installs_the_tarball(local, packages, tmp_path):
    """Spack cannot be installed from a registry. IVY_SPACK is the path of bin/spack of an installation with its packages."""
    spack = os.environ.get("IVY_SPACK") or shutil.which("spack")
    if spack is None:
        pytest.skip("no spack (IVY_SPACK names one)")
    call(os.path.join(REPOSITORY, "scripts/package"), "--native", "--no-build", "--quick", "--out", str(tmp_path), "spack")
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    (configuration / "config.yaml").write_text(f"config:\n  install_tree:\n    root: {tmp_path}/tree\n"
                                               f"  build_stage: {tmp_path}/stage\n  source_cache: {tmp_path}/cache\n")
    (configuration / "repos.yaml").write_text(f"repos:\n  ivyrun: {tmp_path}/spack\n")
    call(spack, "-C", str(configuration), "install", "--no-cache", "ivyrun", limit=300)
    tree = call(spack, "-C", str(configuration), "location", "-i", "ivyrun").strip()
    done = local.run_program(f"{tree}/bin/ivyrun", "-n", "2", "/usr/bin/python3", "-B", "-c", WORLD, limit=60)
    assert done.code == 0 and b"[0, 1] " + tree.encode() in done.out, done


def test_the_spack_recipe_matches_the_tarball(packages, tmp_path):
    call(os.path.join(REPOSITORY, "scripts/package"), "--native", "--no-build", "--quick", "--out", str(tmp_path), "spack")
    text = (tmp_path / "spack/packages/ivyrun/package.py").read_text()
    tarball, = tmp_path.glob("ivyrun-*.tar.gz")
    assert f'url = "file://{tarball}"' in text and "@" not in text, text
    assert hashlib.sha256(tarball.read_bytes()).hexdigest() in text
    compile(text, "package.py", "exec")


def test_a_tarball_of_another_system_is_rejected(local, packages):
    tarball, = packages.glob("ivyrun-*.tar.gz")
    call("tar", "-xf", str(tarball), "-C", local.directory)
    tree, = glob.glob(f"{local.directory}/ivyrun-*")
    os.truncate(f"{tree}/lib/libivycomm.so.1", 1000)
    os.unlink(f"{tree}/bin/ivy-node")
    done = local.run_program(f"{tree}/verify")
    assert done.code == 1 and all_text(done).count("\n") == 1, done
    assert "missing or damaged: bin/ivy-node lib/libivycomm.so" in all_text(done), done
    for command, answer in {"uname": "echo sparc64", "getconf": "echo glibc 2.28"}.items():
        path = local.file(command, f"#!/bin/sh\n{answer}\n", 0o755)
        done = local.run_program(f"{tree}/verify", env={"PATH": f"{local.directory}:/usr/bin:/bin"})
        os.unlink(path)
        assert done.code == 1 and all_text(done).count("\n") == 1, done
        assert answer.split()[-1] in all_text(done), done
