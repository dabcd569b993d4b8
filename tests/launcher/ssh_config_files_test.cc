#include "launcher/links/ssh/ssh_config_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ivy {
namespace {

// Another value of IVY_SSH_CONFIG as long as it lives.
class LentVariable {
 public:
  explicit LentVariable(const std::string& value) {
    if (const char* old = getenv(kName)) old_ = old;
    setenv(kName, value.c_str(), 1);
  }
  ~LentVariable() {
    if (old_) {
      setenv(kName, old_->c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }

 private:
  static constexpr const char* kName = "IVY_SSH_CONFIG";
  std::optional<std::string> old_;
};

class SshConfigFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-ssh-config-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/" + name) << text;
    return root_ + "/" + name;
  }
  std::string root_;
};

TEST_F(SshConfigFilesTest, TheVariablesFileAloneCounts) {
  const std::string path = write("config", "Port 2222\n");
  const LentVariable variable(path);
  const SshConfigFiles files = read_ssh_config_files();
  EXPECT_TRUE(files.readable.ok());
  EXPECT_EQ(files.override_path, path);
  EXPECT_EQ(files.texts, std::vector<std::string>{"Port 2222\n"});
}

TEST_F(SshConfigFilesTest, AVariableThatNamesNoFileIsAnErrorThatNamesIt) {
  const std::pair<std::string, const char*> cases[] = {
      {root_ + "/gone", "No such file or directory"}, {root_, "Is a directory"}};
  for (const auto& [path, why] : cases) {
    const LentVariable variable(path);
    const SshConfigFiles files = read_ssh_config_files();
    ASSERT_FALSE(files.readable.ok()) << path;
    EXPECT_EQ(files.readable.error().message,
              "IVY_SSH_CONFIG names " + path + ", which cannot be read: " + why);
    EXPECT_NE(files.readable.error().fix.find("unset IVY_SSH_CONFIG"), std::string::npos);
  }
}

TEST_F(SshConfigFilesTest, AnEmptyVariableIsNone) {
  const LentVariable variable("");
  const SshConfigFiles files = read_ssh_config_files();
  EXPECT_TRUE(files.readable.ok());
  EXPECT_EQ(files.override_path, "");
  EXPECT_EQ(files.texts.size(), 2u);
}

TEST_F(SshConfigFilesTest, IncludesAreReplacedByTheirFiles) {
  write("a.conf", "User a\n");
  write("b.conf", "User b\n");
  const std::string path = write("config", "Include *.conf\nPort 1\n");
  const std::string text = read_ssh_config(path, root_, SshUser{root_, "ada"});
  EXPECT_EQ(text, "\x02\nUser a\n\x03\n\x02\nUser b\n\x03\nPort 1\n");
  // A circle ends.
  write("config", "Include config\n");
  EXPECT_LT(read_ssh_config(path, root_, SshUser{root_, "ada"}).size(), 1000u);
}

}  // namespace
}  // namespace ivy
