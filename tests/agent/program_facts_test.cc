// SPDX-License-Identifier: Apache-2.0
// A host's facts about a program, in directories that the test makes.
#include "agent/node/facts/program_facts.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include "agent/node/facts/elf_libraries.h"
#include "agent/node/facts/mpi_file.h"

namespace ivy {
namespace {

class ProgramFactsTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-program-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& content, mode_t mode = 0644) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
    chmod(file.c_str(), mode);
  }
  ProgramFacts check(const std::string& program, ProgramForm form = PROGRAM_AUTO) {
    ProgramRequest request;
    request.program = program;
    request.form = form;
    request.interpreters = interpreters_;
    request.search_path = root_ + "/bin";
    request.working_directory = root_;
    return check_program(request);
  }
  std::string root_;
  std::vector<std::string> interpreters_{"python3", "python"};
};

TEST_F(ProgramFactsTest, TreatsAPyFileAsAScriptAndHashesIt) {
  write("train.py", "abc");
  write("bin/python", "#!/bin/sh\n", 0755);
  const ProgramFacts facts = check("train.py");
  EXPECT_TRUE(facts.is_script);
  EXPECT_EQ(facts.path, root_ + "/train.py");
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(facts.interpreter, root_ + "/bin/python");
}

TEST_F(ProgramFactsTest, NamesAMissingScript) {
  write("bin/python3", "#!/bin/sh\n", 0755);
  const ProgramFacts facts = check("train.py");
  EXPECT_EQ(facts.error_number, ENOENT);
  EXPECT_NE(facts.error.find(root_ + "/train.py"), std::string::npos);
}

TEST_F(ProgramFactsTest, RejectsADirectoryAsAScript) {
  std::filesystem::create_directories(root_ + "/dir.py");
  EXPECT_EQ(check("dir.py").error_number, EISDIR);
}

TEST_F(ProgramFactsTest, NamesTheInterpretersThatItTried) {
  write("train.py", "");
  const ProgramFacts facts = check("train.py");
  EXPECT_EQ(facts.interpreter, "");
  EXPECT_NE(facts.interpreter_error.find("python3 ("), std::string::npos);
  EXPECT_NE(facts.interpreter_error.find("python ("), std::string::npos);
  EXPECT_NE(facts.interpreter_error.find(" in PATH (" + root_ + "/bin)"), std::string::npos)
      << facts.interpreter_error;
  interpreters_ = {"/no/such/python"};
  EXPECT_EQ(check("train.py").interpreter_error,
            "no interpreter was found; tried /no/such/python (No such file or directory): write "
            "--python /usr/bin/python3, which exists");
  std::filesystem::create_symlink("/no/such/python3.12", root_ + "/python3");
  interpreters_ = {root_ + "/python3"};
  EXPECT_NE(check("train.py").interpreter_error.find("links to /no/such/python3.12, and /no: "),
            std::string::npos)
      << check("train.py").interpreter_error;
}

// Without this check only the kernel would report the error, and without the missing name.
TEST_F(ProgramFactsTest, ReadsTheFirstLineOfAProgram) {
  const struct {
    std::string content;
    int error;
    const char* says;
  } cases[] = {
      {"#!/bin/sh\n", 0, ""},
      {"#! /bin/sh -e\n", 0, ""},
      {"#!/bin/sh", 0, ""},
      {"#!interpreter\n", 0, ""},  // Relative to the working directory, where it exists.
      {"#!/no/such/interp -u\nx\n", kInterpreterMissing, "does not exist: #!/no/such/interp"},
      {"#!/no/such/interp", kInterpreterMissing, "does not exist: #!/no/such/interp"},
      {"#!/bin/sh\r\necho\r\n", kInterpreterMissing, "#!/bin/sh (its lines end with CR LF: sed"},
      {"#!\n", kInterpreterMissing, "does not exist: #!"},
      {"#!", kInterpreterMissing, "does not exist: #!"},
      {"echo no first line\n", ENOEXEC, "has no #! line"},
      {"\x7f"
       "ELF not really",
       0, ""},  // A file that is not text is left to the kernel.
      {std::string("MZ\0\1", 4), 0, ""},
      {"", 0, ""},
  };
  write("interpreter", "", 0755);
  for (const auto& [content, error, says] : cases) {
    write("tool", content, 0755);
    const ProgramFacts facts = check("./tool");
    EXPECT_EQ(facts.error_number, error) << content;
    EXPECT_EQ(facts.path, root_ + "/tool");
    EXPECT_EQ(facts.error.empty(), error == 0) << facts.error;
    EXPECT_NE(facts.error.find(says), std::string::npos) << facts.error;
  }
}

TEST_F(ProgramFactsTest, FindsAnExecutableInThePath) {
  write("bin/tool", "#!/bin/sh\n", 0755);
  const ProgramFacts facts = check("tool");
  EXPECT_EQ(facts.path, root_ + "/bin/tool");
  EXPECT_FALSE(facts.is_script);
  EXPECT_EQ(facts.interpreter, "");
  EXPECT_EQ(facts.sha256, "");
}

TEST_F(ProgramFactsTest, TakesANameWithASlashFromTheWorkingDirectory) {
  write("sub/tool", "#!/bin/sh\n", 0755);
  EXPECT_EQ(check("sub/tool").path, root_ + "/sub/tool");
}

TEST_F(ProgramFactsTest, NamesAFileThatCannotBeExecuted) {
  write("train", "print()");
  const ProgramFacts facts = check("./train");
  EXPECT_EQ(facts.error_number, EACCES);
  EXPECT_EQ(facts.path, root_ + "/train");
  EXPECT_EQ(facts.error, "program " + root_ + "/train is not executable");
}

TEST_F(ProgramFactsTest, SuggestsASimilarName) {
  write("train.py", "");
  write("tools/run.sh", "", 0755);
  write("pkg/__main__.py", "");
  write("pkg/mod.py", "");
  write("bin/python3", "#!/bin/sh\n", 0755);
  const std::pair<const char*, const char*> cases[] = {{"tarin.py", "write train.py"},
                                                       {"./trian.py", "write ./train.py"},
                                                       {"tools/rum.sh", "write tools/run.sh"},
                                                       {"pkg.mod", "write -m pkg.mod"},
                                                       {"pkg", "write -m pkg"},
                                                       {"python", "write python3"}};
  for (const auto& [program, advice] : cases) {
    const ProgramFacts facts = check(program);
    EXPECT_EQ(facts.error_number, ENOENT) << program;
    EXPECT_TRUE(facts.error.ends_with(std::string(": ") + advice)) << facts.error;
  }
  for (const char* program : {"other.py", "ab", "nothing.like.it", "missing/train.py"})
    EXPECT_EQ(check(program).error.find(": write "), std::string::npos) << check(program).error;
}

TEST_F(ProgramFactsTest, CountsTheDirectoriesOfALongPath) {
  ProgramRequest request;
  request.program = "nothing";
  request.working_directory = root_;
  for (int i = 0; i < 20; ++i)
    request.search_path += (i == 0 ? "" : ":") + root_ + "/" + std::to_string(i);
  EXPECT_EQ(check_program(request).error, "program nothing: not found in PATH (20 directories)");
}

// A library's name is read from the dynamic section; damaged files give no names.
TEST_F(ProgramFactsTest, ReadsTheLibrariesThatAProgramNeeds) {
  EXPECT_EQ(check("/bin/sh").mpi_libraries, "");
  write("broken",
        std::string("\x7f"
                    "ELF\2\1\1",
                    7) +
            std::string(57, '\xff'),
        0755);
  EXPECT_EQ(check("./broken").mpi_libraries, "");
  write("short",
        "\x7f"
        "ELF",
        0755);
  EXPECT_EQ(check("./short").mpi_libraries, "");
  const std::vector<std::string> own = needed_libraries("/proc/self/exe");
  EXPECT_TRUE(std::any_of(own.begin(), own.end(),
                          [](const std::string& name) { return name.starts_with("libc.so"); }));
  EXPECT_TRUE(needed_libraries("/no/such/file").empty());
}

TEST_F(ProgramFactsTest, SuggestsADotSlashForAProgramInTheWorkingDirectory) {
  write("tool", "#!/bin/sh\n", 0755);
  const ProgramFacts facts = check("tool");
  EXPECT_EQ(facts.error_number, ENOENT);
  EXPECT_NE(facts.error.find("./tool"), std::string::npos);
}

TEST_F(ProgramFactsTest, ReportsATruncatedScriptName) {
  write("train.py", "");
  for (const char* program : {"train", "./train"}) {
    const ProgramFacts facts = check(program);
    EXPECT_EQ(facts.error_number, ENOENT);
    EXPECT_NE(facts.error.find(": write " + std::string(program) + ".py"), std::string::npos)
        << facts.error;
  }
}

TEST_F(ProgramFactsTest, NamesTheSearchedPath) {
  const ProgramFacts facts = check("nothing");
  EXPECT_EQ(facts.error_number, ENOENT);
  EXPECT_NE(facts.error.find(root_ + "/bin"), std::string::npos);
}

TEST_F(ProgramFactsTest, RejectsADirectoryAsAProgram) {
  std::filesystem::create_directories(root_ + "/dir");
  EXPECT_EQ(check("./dir").error_number, EISDIR);
}

TEST_F(ProgramFactsTest, NeedsOnlyAnInterpreterForAModule) {
  write("bin/python3", "#!/bin/sh\n", 0755);
  const ProgramFacts facts = check("package.train", PROGRAM_MODULE);
  EXPECT_EQ(facts.path, "");
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.interpreter, root_ + "/bin/python3");
}

TEST_F(ProgramFactsTest, RunsAPyFileAsAnExecutableOnRequest) {
  write("train.py", "#!/usr/bin/env python3\n", 0755);
  const ProgramFacts facts = check("./train.py", PROGRAM_EXECUTABLE);
  EXPECT_FALSE(facts.is_script);
  EXPECT_EQ(facts.path, root_ + "/train.py");
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.interpreter, "");
}

TEST_F(ProgramFactsTest, NamesAMissingWorkingDirectory) {
  ProgramRequest request;
  request.program = "/bin/sh";
  request.working_directory = root_ + "/missing";
  EXPECT_NE(check_program(request).working_directory_error.find("/missing"), std::string::npos);
}

// A file system that shows new files late, as NFS does: files appear during the search.
class LateFilesTest : public ProgramFactsTest {
 protected:
  ProgramFacts check_late(const std::string& program, const std::string& folder,
                          std::function<void(const std::string&)> awaits) {
    ProgramRequest request;
    request.program = program;
    request.interpreters = interpreters_;
    request.search_path = root_ + "/bin";
    request.working_directory = root_ + folder;
    request.retry_time = std::chrono::milliseconds(1'000);
    request.on_wait = [this, awaits = std::move(awaits)](const std::string& path) {
      awaited_.push_back(path);
      if (awaits) awaits(path);
    };
    request.is_on_network = [this](const std::string& path) {
      return is_network_ && path.starts_with(root_);
    };
    return check_program(request);
  }
  bool is_network_ = true;
  std::vector<std::string> awaited_;
};

TEST_F(LateFilesTest, FindsAScriptThatAppearsWhileItIsLookedFor) {
  const ProgramFacts facts =
      check_late("train.py", "", [this](const std::string&) { write("train.py", "abc"); });
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.sha256.size(), 64u);
  EXPECT_EQ(awaited_, std::vector<std::string>{root_ + "/train.py"});
}

TEST_F(LateFilesTest, FindsAProgramAndAWorkingDirectoryThatAppear) {
  const ProgramFacts facts = check_late("./run", "/new/work", [this](const std::string&) {
    write("new/work/run", "#!/bin/sh\n", 0755);
  });
  EXPECT_EQ(facts.working_directory_error, "");
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(awaited_, std::vector<std::string>{root_ + "/new/work"});
}

TEST_F(LateFilesTest, ReportsThatAMissingScriptWasSearchedAgain) {
  const ProgramFacts facts = check_late("train.py", "", nullptr);
  EXPECT_EQ(facts.error_number, ENOENT);
  EXPECT_NE(facts.error.find("No such file or directory (retried for 1 s: a network file"),
            std::string::npos)
      << facts.error;
}

TEST_F(LateFilesTest, SearchesOnceOnALocalFileSystem) {
  is_network_ = false;
  const ProgramFacts facts = check_late("train.py", "", nullptr);
  EXPECT_EQ(facts.error_number, ENOENT);
  EXPECT_EQ(awaited_, std::vector<std::string>{});
  EXPECT_EQ(facts.error.find("again"), std::string::npos);
}

TEST(NetworkFileSystem, IsNotProcOrARemovedFolder) {
  EXPECT_FALSE(is_on_network_file_system("/proc"));
  EXPECT_FALSE(is_on_network_file_system("/nonexistent"));
}

TEST_F(ProgramFactsTest, ReadsThePythonVersionWithoutRunningIt) {
  write("venv/pyvenv.cfg", "home = /usr/bin\nversion = 3.11.2\n");
  write("venv/bin/python", "", 0755);
  EXPECT_EQ(python_version(root_ + "/venv/bin/python"), "3.11.2");
  write("uv/pyvenv.cfg", "version_info = 3.12.1.final.0\n");
  write("uv/bin/python", "", 0755);
  EXPECT_EQ(python_version(root_ + "/uv/bin/python"), "3.12.1");
  write("opt/bin/python3.10", "", 0755);
  std::filesystem::create_symlink("python3.10", root_ + "/opt/bin/python");
  EXPECT_EQ(python_version(root_ + "/opt/bin/python"), "3.10");
  write("odd/bin/pypy", "", 0755);
  EXPECT_EQ(python_version(root_ + "/odd/bin/pypy"), "");
}

// The constants of a library, between NULs.
std::string constants(std::initializer_list<std::string_view> texts) {
  std::string all(1, '\0');
  for (const std::string_view text : texts) all.append(text).push_back('\0');
  return all;
}

TEST(MpiFile, ReportsMakerAndVersion) {
  EXPECT_EQ(mpi_text(constants({"MPICH Version:\t%s", "0.13.99", "4.0.2", "4.0.2", "CH4"})),
            "MPICH 4.0.2");
  EXPECT_EQ(mpi_text(constants({"v5.0.11rc1", "Open MPI v%d.%d.%d", "5.0.11", "2.11.0"})),
            "Open MPI 5.0.11");
  EXPECT_EQ(mpi_text(constants(
                {"1.3.2", "2021.18.1", "Intel(R) MPI Library, Version %s", "MPICH Version:\t%s"})),
            "Intel MPI 2021.18.1");
}

TEST(MpiFile, LeavesOutAVersionThatIsNotCertain) {
  EXPECT_EQ(mpi_text(constants({"MPICH Version:", "4.0.2", "3.4.1"})), "MPICH");
  EXPECT_EQ(mpi_text(constants({"Open MPI v%d", "5.0", "5.0.x", "5.0.1.2"})), "Open MPI");
  EXPECT_EQ(mpi_text(constants({"MVAPICH", "MPICH Version:", "3.0.0"})), "MVAPICH");
  EXPECT_EQ(mpi_text(constants({"4.0.2"})), "");
  EXPECT_EQ(mpi_text(""), "");
}

TEST(MpiFile, IsEmptyForAFileThatIsNotALibrary) {
  EXPECT_EQ(mpi_text_of_file("/no/such/file"), "");
  EXPECT_EQ(mpi_text_of_file("/bin/sh"), "");
  EXPECT_TRUE(mapped_mpi_libraries(getpid()).empty());
}

}  // namespace
}  // namespace ivy
