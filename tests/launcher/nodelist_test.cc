// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/nodelist.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "launcher/options/hosts.h"

namespace ivy {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : " ") + name;
  return out;
}

std::string parsed(const std::string& text) {
  const Result<std::vector<std::string>> names = parse_nodelist(text);
  return names.ok() ? joined(names.value()) : "error " + names.error().message;
}

std::string counts(const std::string& text) {
  const Result<std::vector<int>> read = parse_node_counts(text);
  if (!read.ok()) return "error " + read.error().message;
  std::vector<std::string> words;
  for (const int count : read.value()) words.push_back(std::to_string(count));
  return joined(words);
}

TEST(NodelistTest, ReadsEveryForm) {
  const std::pair<const char*, const char*> cases[] = {
      {"a", "a"},
      {"a,b", "a b"},
      {"b,a", "b a"},
      {"a,a", "a a"},
      {"n1-3", "n1-3"},
      {"n-a.b_c", "n-a.b_c"},
      {"n[1]", "n1"},
      {"n[0-3]", "n0 n1 n2 n3"},
      {"n[01-03,7]", "n01 n02 n03 n7"},
      {"n[001-003,7]", "n001 n002 n003 n7"},
      {"n[7,01-03]", "n7 n01 n02 n03"},
      {"n[08-11,2]", "n08 n09 n10 n11 n2"},
      {"n[09-11]", "n09 n10 n11"},
      {"n[99-101]", "n99 n100 n101"},
      {"n[1-0003]", "n1 n2 n3"},
      {"n[001-3]", "n001 n002 n003"},
      {"n[9-0010]", "n9 n10"},
      {"n[1,1]", "n1 n1"},
      {"n[1-4,2-3]", "n1 n2 n3 n4 n2 n3"},
      {"n[01-03,10,9]", "n01 n02 n03 n10 n9"},
      {"n[1-2],m[3-4],x", "n1 n2 m3 m4 x"},
      {"n[1-2][3-4]", "n13 n14 n23 n24"},
      {"c[1-2]r[1-2]", "c1r1 c1r2 c2r1 c2r2"},
      {"a[01-02]b[7]", "a01b7 a02b7"},
      // The last bracket varies fastest, then the first.
      {"a[1-2]b[1-2]c[1-2]", "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2"},
      {"a[1-2]b[1-3]c[1]", "a1b1c1 a2b1c1 a1b2c1 a2b2c1 a1b3c1 a2b3c1"},
      {"n.[1-2].x[1-2]", "n.1.x1 n.1.x2 n.2.x1 n.2.x2"},
      {"[1-3]", "1 2 3"},
      {"n[00000000001-2]", "n00000000001 n00000000002"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(parsed(text), expected) << text;
}

TEST(NodelistTest, RejectsInvalidNodelists) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "the list is empty"},
      {",a", "column 1: \"\" is not a name: there is an extra comma"},
      {"a,", "column 3: \"\" is not a name: there is an extra comma"},
      {"a,,b", "column 3: \"\" is not a name: there is an extra comma"},
      {"a,n[1-2]-ib", "column 3: \"n[1-2]-ib\" has text after its last bracket"},
      {"n[1-2]m[1-2]k", "column 1: \"n[1-2]m[1-2]k\" has text after its last bracket"},
      {"n[]", "column 3: \"\" is not a number or a range low-high"},
      {"n[1", "column 2: \"n[1\" has an unmatched bracket"},
      {"n]1", "column 2: \"n]1\" has an unmatched bracket"},
      {"n[1-2]m[", "column 8: \"n[1-2]m[\" has an unmatched bracket"},
      {"n[[1-2]]", "column 2: \"n[[1-2]]\" has an unmatched bracket"},
      {"n[3-1]", "column 3: \"3-1\" is a descending range"},
      {"n[1-]", "column 3: \"1-\" is not a number or a range low-high"},
      {"n[-1]", "column 3: \"-1\" is not a number or a range low-high"},
      {"n[5,a-c]", "column 5: \"a-c\" is not a number or a range low-high"},
      {"n[1,,2]", "column 5: \"\" is not a number or a range low-high"},
      {"n[1-8/2]", "column 3: \"1-8/2\" is not a number or a range low-high"},
      {"n[ 1-2]", "column 3: \" 1-2\" is not a number or a range low-high"},
      {"bgl[000x111]", "column 5: \"000x111\" is not a number or a range low-high"},
      {"a b", "column 1: \"a b\" is not a host name"},
      {"(null)", "column 1: \"(null)\" is not a host name"},
      {"-x", "column 1: \"-x\" is not a host name"},
      {"n1;reboot", "column 1: \"n1;reboot\" is not a host name"},
      {"n[1-5000]", "column 3: \"1-5000\" expands to more than 4096 hosts"},
      {"n[1-99]m[1-99]", "column 1: \"n[1-99]m[1-99]\" expands to more than 4096 hosts"},
      {"n[1-4000],m[1-97]", "column 11: \"m[1-97]\" expands to more than 4096 hosts"},
      {"n[1-9999999999999999999]",
       "column 3: \"1-9999999999999999999\" is not a number or a range low-high"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(parsed(text), std::string("error ") + expected) << text;
  EXPECT_EQ(parsed(std::string(kMaxHostListBytes + 1, 'a')),
            "error longer than 1048576 characters");
}

TEST(NodelistTest, ReadsCounts) {
  const std::pair<const char*, const char*> cases[] = {
      {"4", "4"}, {"2(x3),1", "2 2 2 1"}, {"1,1,8(x2)", "1 1 8 8"}, {"0", "0"}, {"72(x1)", "72"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(counts(text), expected) << text;
  for (const char* text :
       {"", "x", "2(x0)", "2(x3", "2(3)", "2,", "-1", "2(x99999)", "2x3", "(x3)"})
    EXPECT_TRUE(counts(text).starts_with("error ")) << text;
}

TEST(NodelistTest, WritesShortAndInOrder) {
  const std::pair<const char*, const char*> cases[] = {
      {"a", "a"},
      {"n[1-2]", "n[1-2]"},
      {"n1,n2,n3,n5", "n[1-3,5]"},
      {"n01,n02,n03,n10,n9", "n[01-03,10,9]"},
      {"n3,n1,n2", "n[3,1-2]"},
      {"n99,n100", "n[99-100]"},
      {"n099,n100", "n[099-100]"},
      {"n9,n010", "n[9,010]"},
      {"a1,b1,a2", "a1,b1,a2"},
      {"a,a", "a,a"},
      {"7,8", "7,8"},
      {"c1r1,c1r2,c2r1", "c1r[1-2],c2r1"},
      {"n1-ib,n2-ib", "n1-ib,n2-ib"},
  };
  for (const auto& [names, expected] : cases)
    EXPECT_EQ(nodelist_text(parse_nodelist(names).value()), expected) << names;
  EXPECT_EQ(node_counts_text({2, 2, 2, 1}), "2(x3),1");
  EXPECT_EQ(node_counts_text({8}), "8");
}

// ---- Comparison with scontrol
// ------------------------------------------------------------------

using Random = std::mt19937;

int pick(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

std::string random_ranges(Random& random) {
  std::string text;
  for (int i = pick(random, 1, 3); i > 0; --i) {
    const int low = pick(random, 0, 120);
    std::string number = std::to_string(low);
    if (pick(random, 0, 1) == 0)
      number.insert(0, static_cast<std::size_t>(pick(random, 0, 3)), '0');
    text += (text.empty() ? "" : ",") + number;
    if (pick(random, 0, 2) > 0) text += "-" + std::to_string(low + pick(random, 0, 12));
  }
  return text;
}

// Names as sites use them, with at most four brackets.
std::string random_list(Random& random) {
  constexpr const char* kTexts[] = {"n", "node", "gpu-", "rack.", "c1r", "a", "x-2-", "m_"};
  std::string text;
  for (int item = pick(random, 1, 3); item > 0; --item) {
    if (!text.empty()) text += ",";
    const int brackets = pick(random, 0, 4);
    if (brackets == 0) text += std::string(kTexts[pick(random, 0, 7)]) + std::to_string(item);
    for (int i = 0; i < brackets; ++i)
      text += std::string(kTexts[pick(random, 0, 7)]) + "[" +
              (brackets < 3 ? random_ranges(random) : std::to_string(pick(random, 1, 9)) + "-9") +
              "]";
  }
  return text;
}

class ScontrolTest : public testing::Test {
 protected:
  void SetUp() override {
    // 127 is the shell's "not found".
    if (WEXITSTATUS(std::system("scontrol --version >/dev/null 2>&1")) == 127)
      GTEST_SKIP() << "scontrol is not installed (scripts/setup bench)";
    // scontrol expands names without a daemon, but not without a configuration.
    directory_ =
        std::filesystem::temp_directory_path() / ("ivy-nodelist-test." + std::to_string(getpid()));
    std::filesystem::create_directory(directory_);
    std::ofstream(directory_ / "slurm.conf")
        << "ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\n";
    setenv("SLURM_CONF", (directory_ / "slurm.conf").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("SLURM_CONF");
    std::filesystem::remove_all(directory_);
  }

  // Returns scontrol's lines joined by blanks. None of these texts contains a quote.
  static std::string hostnames(const std::string& text) {
    FILE* pipe = popen(("scontrol show hostnames '" + text + "' 2>&1").c_str(), "r");
    std::string printed;
    for (int c = 0; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;)
      printed += c == '\n' ? ' ' : static_cast<char>(c);
    if (pipe != nullptr) pclose(pipe);
    if (!printed.empty()) printed.pop_back();
    return printed;
  }

  std::filesystem::path directory_;
};

TEST_F(ScontrolTest, MatchesScontrol) {
  Random random(20251122);
  std::size_t compared = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_list(random);
    const Result<std::vector<std::string>> names = parse_nodelist(text);
    // More than 4096 hosts, which is ivyrun's limit and not Slurm's.
    if (!names.ok()) {
      EXPECT_NE(names.error().message.find("more than 4096"), std::string::npos) << text;
      continue;
    }
    ASSERT_EQ(joined(names.value()), hostnames(text)) << text;
    ASSERT_EQ(joined(names.value()), hostnames(nodelist_text(names.value()))) << text;
    ++compared;
  }
  EXPECT_GE(compared, 200U);
}

// Damaged lists that ivyrun accepts are accepted by Slurm too, with the same names.
TEST_F(ScontrolTest, ReadsDamagedListsAsScontrolDoes) {
  Random random(7);
  constexpr std::string_view kDamage = "[],-0 9xn/";
  std::size_t taken = 0;
  for (int i = 0; i < 300; ++i) {
    std::string text = random_list(random);
    const int place = pick(random, 0, static_cast<int>(text.size()) - 1);
    text[static_cast<std::size_t>(place)] = kDamage[static_cast<std::size_t>(pick(random, 0, 9))];
    const Result<std::vector<std::string>> names = parse_nodelist(text);
    if (!names.ok()) continue;
    ASSERT_EQ(joined(names.value()), hostnames(text)) << text;
    ++taken;
  }
  EXPECT_GE(taken, 30U);
}

}  // namespace
}  // namespace ivy
