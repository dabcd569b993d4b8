# SPDX-License-Identifier: Apache-2.0
"""One table of options: help, man pages, completions and documentation match the parser. Also config files and a host's
policy."""

import json
import os
import re
import shutil
import subprocess
import tomllib

import pytest

from launching import BIN, REPOSITORY, pages_that_programs_name, seconds

PROGRAMS = ("ivyrun", "ivyctl", "ivy-agent", "ivy-rendezvous")


def call(*command, text="", env=None, cwd=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds(20), cwd=cwd,
                          env={**os.environ, **(env or {})})


def output(program, *words, **options):
    done = call(os.path.join(BIN, program), *words, **options)
    assert done.returncode == 0, (program, words, done)
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_help_of_the_same_form(program):
    text = output(program, "--help")
    assert text.startswith(f"usage: {program} "), text
    assert max(map(len, text.splitlines())) <= (110 if program == "ivy-rendezvous" else 80), text
    assert output(program, "--version").startswith(program + " ")
    done = call(os.path.join(BIN, program), "--generate", "nonsense")
    assert done.returncode != 0 and "markdown, bash, zsh or fish" in done.stderr, done


def test_help_of_ivyrun_fits_a_terminal():
    common = output("ivyrun", "--help").splitlines()
    whole = output("ivyrun", "--help", "all").splitlines()
    assert len(common) <= 45 and max(map(len, common + whole)) <= 80, common
    assert any("123 " in line for line in whole), whole
    script = "stty cols 60; exec " + os.path.join(BIN, "ivyrun") + " --help all"
    done = call("script", "-qec", script, "/dev/null")
    # A flag with a long list of values is not wrapped.
    assert all(len(line) <= 60 or line.strip().startswith("-") for line in done.stdout.splitlines()), done.stdout


@pytest.mark.skipif(shutil.which("help2man") is None, reason="help2man is not installed")
def test_man_pages_are_clean_roff(tmp_path):
    done = call(os.path.join(REPOSITORY, "scripts/packaging/pages"), BIN, str(tmp_path), "0.1")
    assert done.returncode == 0 and not done.stderr, done
    for program in PROGRAMS:
        page = (tmp_path / f"man/man1/{program}.1").read_text(encoding="utf-8")
        assert ".SH NAME\n" in page and ("--version" in page.replace("\\-", "-") or program == "ivy-agent"), page
        if shutil.which("groff") is not None:
            done = call("groff", "-man", "-Tutf8", "-ww", "-z", text=page)
            assert done.returncode == 0 and not done.stderr, done


def bash_offers(program, *words):
    script = output(program, "--generate", "bash") + """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_""" + program.replace("-", "_") + """
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = call("bash", "-c", script, "bash", os.path.join(BIN, program), *words)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout.split()


def test_bash_completes_flags_values_verbs_and_the_program():
    assert bash_offers("ivyrun", "--nproc-p") == ["--nproc-per-node"]
    assert bash_offers("ivyrun", "-H", "a,b", "--transport", "s") == ["ssh", "slurm"]
    assert bash_offers("ivyrun", "--label", "=", "r") == ["rank"]
    assert "python3" in bash_offers("ivyrun", "-n", "2", "pytho")
    assert bash_offers("ivyrun", "-n", "2", "train.py", "--nproc") == []  # The program's own words.
    assert bash_offers("ivyctl", "sta") == ["stack", "status"]
    assert bash_offers("ivyctl", "stop", "--n") == ["--now"]
    assert "IVY-H003" in bash_offers("ivyctl", "explain", "IVY-H")
    assert "--listen" in bash_offers("ivy-agent", "serve", "--")


def test_zsh_completes():
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    for program in PROGRAMS:
        script = ("compdef() { }; _describe() { print -l -- $offers }; _normal() { print -l normal $words }\n"
                  + output(program, "--generate", "zsh")
                  + f"words=({os.path.join(BIN, program)} --); CURRENT=2\n_{program.replace('-', '_')}\n")
        done = call("zsh", "-f", "-c", script)
        assert done.returncode == 0 and not done.stderr, (program, done.stderr)
        offered = {"ivyrun": "--nproc-per-node", "ivyctl": "--help", "ivy-agent": "--help", "ivy-rendezvous": "--listen"}
        assert offered[program] in done.stdout, done.stdout


def test_fish_completes(tmp_path):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = "".join(output(program, "--generate", "fish") for program in PROGRAMS)
    done = call("fish", "--no-config", "-c", script + """
complete -C "ivyrun --nproc"; complete -C "ivyrun --transport s"; complete -C "ivyctl lo"; complete -C "ivyctl stop --n"
""", env={"HOME": str(tmp_path), "PATH": BIN + ":" + os.environ["PATH"]})
    offered = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert {"--nproc-per-node", "ssh", "slurm", "logs", "--now"} <= offered, done


def test_the_completion_commands_of_the_documentation_work_in_a_new_account(tmp_path):
    with open(os.path.join(REPOSITORY, "docs/configuration.md"), encoding="utf-8") as file:
        section = file.read().split("## Shell completion")[1]
    commands = re.findall(r"^    (.*)$", section, re.MULTILINE)[:4]
    assert commands[0].startswith("mkdir -p "), commands
    done = call("sh", "-e", "-c", "\n".join(commands), env={"HOME": str(tmp_path), "PATH": BIN + ":/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {".local/share/bash-completion/completions/ivyrun", ".zfunc/_ivyrun",
                    ".config/fish/completions/ivyrun.fish"}, made


def test_printed_pages_name_flags_launchers_and_messages(tmp_path):
    done = call(os.path.join(REPOSITORY, "scripts/docs"), "pages", str(tmp_path), env={"IVY_BIN": BIN})
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {*os.listdir(tmp_path), *os.listdir(os.path.join(REPOSITORY, "docs"))}
    assert pages_that_programs_name() <= pages, pages_that_programs_name() - pages
    for page, word in (("flags.md", "--nproc-per-node"), ("coming-from.md", "## torchrun"), ("when-it-fails.md", "IVY-R001")):
        assert word in (tmp_path / page).read_text(encoding="utf-8"), page


def test_links_of_the_documentation_are_valid():
    done = call(os.path.join(REPOSITORY, "scripts/docs"), "links", env={"IVY_BIN": BIN})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run([os.path.join(REPOSITORY, "scripts/docs"), "site", str(tmp_path / "site")], text=True,
                          capture_output=True, timeout=seconds(300), env={**os.environ, "IVY_BIN": BIN})
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip("MkDocs Material cannot be installed here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Start here" in (tmp_path / "site/index.html").read_text(encoding="utf-8")


def test_messages_of_the_sources_are_all_explained():
    sources = call("grep", "-rhoE", '"IVY-[A-Z][0-9]{3}"|error.IVY-[A-Z][0-9]{3}', "launcher", "agent", "rendezvous",
                   "--include=*.cc", "--include=*.h", cwd=REPOSITORY).stdout
    said = set(re.findall(r"IVY-[A-Z]\d{3}", sources))
    listed = set(re.findall(r"^IVY-[A-Z]\d{3}", output("ivyctl", "explain"), re.MULTILINE))
    assert said == listed, said ^ listed


def test_config_files_and_the_origin_of_a_value(local, tmp_path):
    home = tmp_path / "home"
    (home / ".config/ivyrun").mkdir(parents=True)
    user = home / ".config/ivyrun/config.toml"
    user.write_text('num-proc = 3\nlabel = "none"\nexport = ["A=1", "B=2"]\n')
    env = {"HOME": str(home), "XDG_CONFIG_HOME": "", "IVY_LABEL": "rank"}
    rows = [re.split(r"  +", line.strip()) for line in output("ivyctl", "config", "--origin", env=env).splitlines()]
    assert rows[1:] == [["label", "rank", "IVY_LABEL"], ["num-proc", "3", f"{user}:1"],
                        ["export", "A=1", f"{user}:3"], ["export", "B=2", f"{user}:3"]], rows
    assert output("ivyctl", "config", env=env) == 'label = "rank"\nnum-proc = "3"\nexport = ["A=1", "B=2"]\n'
    named = output("ivyctl", "config", env={**env, "IVY_LOG_DIR": 'a\tb\x7f"\n'})
    assert 'log-dir = "a\\u0009b\\u007F\\"\\u000A"\n' in named and tomllib.loads(named)["log-dir"] == 'a\tb\x7f"\n', named
    listed = json.loads(output("ivyctl", "config", "--json", env=env))
    assert {"flag": "num-proc", "value": "3", "origin": f"{user}:1"} in listed
    done = call(os.path.join(BIN, "ivyrun"), "sh", "-c", 'echo "$A $B $WORLD_SIZE"', env=env)
    assert sorted(done.stdout.split("\n"))[1:] == [f"[{rank}] 1 2 3" for rank in range(3)], done

    user.write_text("\nnproc-per-nod = 3\n")
    for program, words in (("ivyrun", ("true",)), ("ivyctl", ("config",))):
        done = call(os.path.join(BIN, program), *words, env=env)
        assert done.returncode != 0 and f'{user}:2: unknown key "nproc-per-nod"' in done.stderr, done
        assert "did you mean nproc-per-node?" in done.stderr, done
    done = call(os.path.join(BIN, "ivyrun"), "--config", "none", "-n", "1", "true", env=env)
    assert done.returncode == 0, done


def test_the_policy_of_a_host(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can write a policy")
    etc = tmp_path / "ivyrun"
    etc.mkdir()
    (etc / "policy.toml").write_text('transports = ["agent"]\nports = "20000-20100"\nforbid = ["detach"]\n')

    def under_policy(*words):
        # /etc/ivyrun in a separate mount namespace.
        script = ('made=; [ -d /etc/ivyrun ] || { mkdir /etc/ivyrun && made=1; }; mount --bind "$0" /etc/ivyrun || exit 99; '
                  '"$@"; code=$?; umount /etc/ivyrun; [ -z "$made" ] || rmdir /etc/ivyrun; exit $code')
        done = call("unshare", "-m", "sh", "-c", script, str(etc), *words)
        if done.returncode == 99 or "unshare" in done.stderr:
            pytest.skip("no mount namespace here")
        return done

    ivyrun = os.path.join(BIN, "ivyrun")
    refused = under_policy(ivyrun, "--detach", "true")
    assert refused.returncode == 2 and "(/etc/ivyrun/policy.toml:3) forbids --detach" in refused.stderr, refused
    refused = under_policy(ivyrun, "-H", "192.0.2.1", "--transport", "ssh", "true")
    assert refused.returncode == 2 and "forbids --transport ssh" in refused.stderr, refused
    ports = under_policy(ivyrun, "--fake-hosts", "2", "-n", "2", "--label", "none", "sh", "-c", "echo $MASTER_PORT")
    assert ports.returncode == 0 and all(20000 <= int(port) <= 20100 for port in ports.stdout.split()), ports
    listed = under_policy(os.path.join(BIN, "ivyctl"), "config", "--origin")
    assert "policy: ports" in listed.stdout and "20000-20100" in listed.stdout, listed
