// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/python_environment.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "proto/os/files.h"
#include "proto/wire/stage.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// An environment in a project, as venv, uv and pip lay it out.
class PythonEnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/environment.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    project_ = fs::canonical(pattern);
    prefix_ = project_ + "/.venv";
    fs::create_directories(prefix_ + "/bin");
    fs::create_directories(project_ + "/base/bin");
    write("pyvenv.cfg", "home = " + project_ + "/base/bin\nversion = 3.11.2\n");
    write(kSite + "/one/__init__.py", "x = 1\n");
    fs::create_symlink("/usr/bin/python3", prefix_ + "/bin/python3");
    fs::create_symlink("python3", prefix_ + "/bin/python");
    fs::create_directory_symlink("lib", prefix_ + "/lib64");
  }
  void TearDown() override { fs::remove_all(project_); }

  void write(const std::string& path, const std::string& text, mode_t mode = 0644) {
    const std::string name = prefix_ + "/" + path;
    fs::create_directories(fs::path(name).parent_path());
    ASSERT_TRUE(overwrite(name, text)) << name;
    ASSERT_EQ(chmod(name.c_str(), mode), 0);
  }

  EnvironmentFiles list(const std::string& project) {
    const auto environment = read_python_environment(prefix_);
    EXPECT_TRUE(environment.ok());
    auto files = list_environment(*environment, project, made());
    EXPECT_TRUE(files.ok()) << files.error().message;
    return files.ok() ? std::move(files).value() : EnvironmentFiles{};
  }
  Error list_error(const std::string& project) {
    const auto environment = read_python_environment(prefix_);
    if (!environment.ok()) return environment.error();
    const auto files = list_environment(*environment, project, made());
    EXPECT_FALSE(files.ok());
    return files.ok() ? Error{} : files.error();
  }

  std::string made() {
    fs::create_directories(project_ + "/made");
    return project_ + "/made";
  }
  static const stage::SourceFile* find(const EnvironmentFiles& files, const std::string& path,
                                       std::string_view part = kEnvironmentPart) {
    for (const stage::SourceFile& file : files.files)
      if (file.path == std::string(part) + "/" + path) return &file;
    return nullptr;
  }
  static std::string content(const EnvironmentFiles& files, const std::string& path) {
    const stage::SourceFile* file = find(files, path);
    if (file == nullptr) return "(missing)";
    const std::string text = read_file(file->file, 1 << 20).value_or("(unreadable)");
    EXPECT_EQ(text.size(), file->size);
    return text;
  }
  static StagedPython description(const EnvironmentFiles& files) {
    StagedPython description;
    EXPECT_TRUE(
        description.ParseFromString(content(files, std::string(stage::kEnvironmentDescription))));
    return description;
  }

  const std::string kSite = "lib/python3.11/site-packages";
  std::string project_, prefix_;
};

TEST_F(PythonEnvironmentTest, ReadsAVenv) {
  EXPECT_EQ(environment_of_interpreter(prefix_ + "/bin/python"), prefix_);
  EXPECT_EQ(environment_of_interpreter("/usr/bin/python3"), "");
  const auto environment = read_python_environment(prefix_);
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->kind, EnvironmentKind::kVenv);
  EXPECT_EQ(environment->site, kSite);
  EXPECT_EQ(environment->config.version, "3.11.2");
  EXPECT_EQ(environment->managed_python, "");
}

TEST_F(PythonEnvironmentTest, RejectsADirectoryThatIsNoEnvironment) {
  const auto environment = read_python_environment(project_);
  ASSERT_FALSE(environment.ok());
  EXPECT_NE(environment.error().message.find("has no pyvenv.cfg"), std::string::npos);
}

TEST_F(PythonEnvironmentTest, RejectsAnEnvironmentWhosePythonIsGone) {
  fs::remove_all(project_ + "/base");
  const auto environment = read_python_environment(prefix_);
  ASSERT_FALSE(environment.ok());
  EXPECT_NE(environment.error().message.find("no longer exists: " + project_ + "/base/bin"),
            std::string::npos)
      << environment.error().message;
}

TEST_F(PythonEnvironmentTest, FindsThePythonThatUvHasInstalled) {
  const std::string uv = project_ + "/uv/python/cpython-3.11.2-linux-x86_64-gnu";
  fs::create_directories(uv + "/bin");
  fs::create_directory_symlink("cpython-3.11.2-linux-x86_64-gnu",
                               project_ + "/uv/python/cpython-3.11-linux-x86_64-gnu");
  write("pyvenv.cfg", "home = " + project_ +
                          "/uv/python/cpython-3.11-linux-x86_64-gnu/bin\nversion_info = 3.11.2\n");
  EXPECT_EQ(read_python_environment(prefix_)->managed_python, uv);
  ASSERT_TRUE(overwrite(uv + "/bin/python3.11", "x"));
  fs::create_symlink("python3.11", uv + "/bin/python3");
  const EnvironmentFiles files = list("");
  ASSERT_NE(find(files, "bin/python3.11", kPythonPart), nullptr);
  EXPECT_EQ(find(files, "bin/python3", kPythonPart)->link, "python3.11");
  EXPECT_EQ(find(files, ".ivyrun-environment", kPythonPart), nullptr);
}

TEST_F(PythonEnvironmentTest, ListsSmallFilesFirstAndNoInterpreter) {
  write(kSite + "/big.bin", std::string(5000, 'x'));
  const EnvironmentFiles files = list("");
  EXPECT_EQ(find(files, "bin/python"), nullptr);
  EXPECT_EQ(find(files, "bin/python3"), nullptr);
  EXPECT_EQ(find(files, "pyvenv.cfg"), nullptr);
  ASSERT_NE(find(files, "lib64"), nullptr);
  EXPECT_EQ(find(files, "lib64")->link, "lib");
  EXPECT_TRUE(S_ISDIR(files.files.front().mode));
  EXPECT_TRUE(files.files.back().path.ends_with("/big.bin"));
  EXPECT_EQ(description(files).home(), project_ + "/base/bin");
}

TEST_F(PythonEnvironmentTest, SendsTheContentOfLinksToACache) {
  ASSERT_TRUE(overwrite(project_ + "/cached.py", "y = 2\n"));
  fs::create_symlink(project_ + "/cached.py", prefix_ + "/" + kSite + "/two.py");
  fs::create_symlink(prefix_ + "/" + kSite + "/one", prefix_ + "/" + kSite + "/uno");
  const EnvironmentFiles files = list("");
  ASSERT_NE(find(files, kSite + "/two.py"), nullptr);
  EXPECT_EQ(find(files, kSite + "/two.py")->size, 6u);
  EXPECT_EQ(find(files, kSite + "/uno")->link, "one");
  fs::create_directory_symlink("/usr/share", prefix_ + "/share");
  EXPECT_NE(list_error("").message.find("share -> /usr/share"), std::string::npos);
}

TEST_F(PythonEnvironmentTest, ChangesScriptsAndListsTextsWithThePath) {
  write("bin/tool", "#!" + prefix_ + "/bin/python3\nprint()\n", 0755);
  write("bin/activate", "VIRTUAL_ENV=" + prefix_ + "\n");
  write("bin/other", "#!/bin/sh\n");
  const EnvironmentFiles files = list("");
  EXPECT_TRUE(content(files, "bin/tool").starts_with("#!/bin/sh\n'''exec' "));
  EXPECT_TRUE(content(files, "bin/tool").ends_with("' '''\nprint()\n"));
  ASSERT_NE(find(files, "bin/tool"), nullptr);
  EXPECT_EQ(find(files, "bin/tool")->mode, S_IFREG | 0755u);
  EXPECT_EQ(description(files).texts_size(), 1);
  EXPECT_EQ(description(files).texts(0), "bin/activate");
}

TEST_F(PythonEnvironmentTest, ReplacesEditableInstallsOfTheProject) {
  write(kSite + "/__editable__.foo-0.1.pth", project_ + "/src\n");
  write(kSite + "/__editable__.bar-0.1.pth",
        "import __editable___bar_0_1_finder; __editable___bar_0_1_finder.install()");
  write(kSite + "/__editable___bar_0_1_finder.py",
        "import sys\nMAPPING = {'bar': '" + project_ + "/bar'}\n");
  const EnvironmentFiles files = list(project_);
  EXPECT_EQ(files.imports, (Words{".", "src"}));
  for (const stage::SourceFile& file : files.files)
    EXPECT_EQ(file.path.find("__editable__"), std::string::npos) << file.path;
  EXPECT_NE(find(list(""), kSite + "/__editable__.foo-0.1.pth"), nullptr);
}

TEST_F(PythonEnvironmentTest, RejectsEditableInstallsOfOtherDirectories) {
  write(kSite + "/__editable__.foo-0.1.pth", "/home/me/lib/src\n");
  const Error error = list_error(project_);
  EXPECT_NE(error.message.find("imports package foo-0.1 from /home/me/lib/src"), std::string::npos)
      << error.message;
  EXPECT_NE(error.fix.find("pip install /home/me/lib/src"), std::string::npos);
}

TEST_F(PythonEnvironmentTest, NamesTheMachineOfCompiledFiles) {
  fs::copy_file("/bin/true", prefix_ + "/" + kSite + "/x.so");
  std::string other = read_file("/bin/true", 64).value();
  other[18] = 22;  // s390x
  other[19] = 0;
  write(kSite + "/foreign.so", other);
  const StagedPython own = description(list(""));
  EXPECT_EQ(own.compiled_file(), kSite + "/x.so");
  fs::remove(prefix_ + "/" + kSite + "/x.so");
  EXPECT_EQ(description(list("")).architecture(), "s390x");
}

TEST_F(PythonEnvironmentTest, NamesATreeByItsContent) {
  const auto name = [&] {
    EnvironmentFiles files = list("");
    for (stage::SourceFile& file : files.files) file.sha256 = std::to_string(file.size);
    return shared_part(files.files, kEnvironmentPart).name();
  };
  const std::string first = name();
  EXPECT_TRUE(first.starts_with("venv-"));
  EXPECT_EQ(first.size(), 29u);
  EXPECT_EQ(name(), first);
  write(kSite + "/one/more.py", "");
  EXPECT_NE(name(), first);
}

TEST_F(PythonEnvironmentTest, NotesPackagesOfTheSystem) {
  EXPECT_TRUE(list("").notes.empty());
  write("pyvenv.cfg", "home = " + project_ +
                          "/base/bin\nversion = 3.11.2\ninclude-system-site-packages = true\n");
  ASSERT_EQ(list("").notes.size(), 1u);
}

TEST_F(PythonEnvironmentTest, ReadsCondasRecords) {
  fs::remove(prefix_ + "/pyvenv.cfg");
  write("conda-meta/python-3.11.json",
        R"({"name": "python", "paths_data": {"paths": [
            {"_path": "lib/libx.so", "file_mode": "binary", "prefix_placeholder": "/place/holder"},
            {"_path": "bin/x", "file_mode": "text", "prefix_placeholder": "/place/holder"},
            {"_path": "lib/plain.py"}]}})");
  const auto environment = read_python_environment(prefix_);
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->kind, EnvironmentKind::kConda);
  const EnvironmentFiles files = list("");
  EXPECT_NE(find(files, "bin/python"), nullptr);
  const StagedPython found = description(files);
  EXPECT_TRUE(found.is_conda());
  ASSERT_EQ(found.binaries_size(), 1);
  EXPECT_EQ(found.binaries(0).path(), "lib/libx.so");
  EXPECT_EQ(found.binaries(0).placeholder_length(), 13u);
  EXPECT_EQ(found.texts(0), "bin/x");
  write("conda-meta/broken.json", "{");
  EXPECT_NE(list_error("").message.find("broken.json"), std::string::npos);
}

}  // namespace
}  // namespace ivy
