// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "launcher/options/env_files.h"

namespace ivy {
namespace {

const Environment kCaller = {{"FROM_CALLER", "c"}, {"FROM_OTHER", "d"}};

std::string shown(const Result<Environment>& parsed) {
  if (!parsed.ok()) return "error " + parsed.error().message;
  std::string text;
  for (const EnvVariable& variable : parsed.value())
    text += (text.empty() ? "" : "|") + variable.name + "=" + variable.value;
  return text;
}

std::string read(const std::string& text) { return shown(parse_env_file(text, "f.env", kCaller)); }

TEST(EnvFileTest, ReadsTheSyntaxSharedByShellsAndDocker) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"\n\n  \t\n", ""},
      {"# comment\n  # another\nA=1\n", "A=1"},
      {"A=1\nB=2", "A=1|B=2"},
      {"A=1\nA=last\n", "A=last"},
      {"A=1\r\nB=2\r\n", "A=1|B=2"},
      {"\xEF\xBB\xBF"
       "A=1\n",
       "A=1"},
      {"export A=1\n", "A=1"},
      {"  export\t A=1\n", "A=1"},
      {"exported=1\n", "exported=1"},
      {"export=1\n", "export=1"},
      {"FROM_CALLER\n", "FROM_CALLER=c"},
      {"export FROM_CALLER   # its own value\n", "FROM_CALLER=c"},
      {"FROM_*\n", "FROM_CALLER=c|FROM_OTHER=d"},
      // Plain values.
      {"A=\n", "A="},
      {"A=   \n", "A="},
      {"A= # nothing\n", "A="},
      {"A=two words  \n", "A=two words"},
      {"A=1 # one\n", "A=1"},
      {"A=1#one\n", "A=1#one"},
      {"A=a=b==\n", "A=a=b=="},
      {"U=http://x/?a=1&b=2;c\n", "U=http://x/?a=1&b=2;c"},
      {"A=^mlx5_0,100%\n", "A=^mlx5_0,100%"},
      {"A=cost$\n", "A=cost$"},
      {"A=a$,b\n", "A=a$,b"},
      {"A=\xff\xfe\n", "A=\xff\xfe"},
      // Quotes.
      {"A='x y'\n", "A=x y"},
      {"A=\"x y\"\n", "A=x y"},
      {"A='' # empty\n", "A="},
      {"A='# no comment' # comment\n", "A=# no comment"},
      {"A='$HOME `x` \\ \"'\n", "A=$HOME `x` \\ \""},
      {"A=\"\\\"x\\\" \\\\ \\$HOME \\`\"\n", "A=\"x\" \\ $HOME `"},
      {"A=\"a\\nb 'c'\"\n", "A=a\\nb 'c'"},
      {"A='  x  '  \n", "A=  x  "},
      {"A='{\"a\": [1]}'\n", "A={\"a\": [1]}"},
  };
  for (const auto& [text, variables] : cases) EXPECT_EQ(read(text), variables) << text;
}

TEST(EnvFileTest, RejectsAmbiguousLinesWithTheirPosition) {
  const std::pair<const char*, const char*> cases[] = {
      {"A=1\n\nRANK=2\n", "f.env:3:1: RANK is set by ivyrun for every worker"},
      {"  1A=1\n", "f.env:1:3: \"1A\" is not a valid variable name"},
      {"=1\n", "f.env:1:1: \"\" is not a valid variable name"},
      {"export \n", "f.env:1:8: \"\" is not a valid variable name"},
      {"export GONE\n", "f.env:1:8: GONE is not set in this environment"},
      {"not a name=1\n", "f.env:1:4: there is a space in the name or before the ="},
      {"A = 1\n", "f.env:1:2: there is a space in the name or before the ="},
      {"A= 1\n", "f.env:1:3: there is a space after the ="},
      {"\n A='x\n", "f.env:2:4: the quote ' is not closed on this line"},
      {"A=\"x\\\"\n", "f.env:1:3: the quote \" is not closed on this line"},
      {"A=\"x\"y\n", "f.env:1:6: unexpected text after the closing quote"},
      {"A='x'#y\n", "f.env:1:6: unexpected text after the closing quote"},
      {"A='x' y\n", "f.env:1:7: unexpected text after the closing quote"},
      {"A=it's\n", "f.env:1:5: shells and docker interpret ' differently here"},
      {"A=x\"y\"\n", "f.env:1:4: shells and docker interpret \" differently here"},
      {"A={\"a\": 1}\n", "f.env:1:4: shells and docker interpret \" differently here"},
      {"A=a\\ b\n", "f.env:1:4: shells and docker interpret \\ differently here"},
      {"A=$HOME/x\n", "f.env:1:3: variables are not expanded in this file"},
      {"A=x${B}\n", "f.env:1:4: variables are not expanded in this file"},
      {"A=$(date)\n", "f.env:1:3: variables are not expanded in this file"},
      {"A=`date`\n", "f.env:1:3: variables are not expanded in this file"},
      {"A=\"in $HOME\"\n", "f.env:1:7: variables are not expanded in this file"},
  };
  for (const auto& [text, message] : cases) {
    const Result<Environment> parsed = parse_env_file(text, "f.env", kCaller);
    EXPECT_EQ(shown(parsed), std::string("error ") + message) << text;
    EXPECT_TRUE(parsed.ok() || !parsed.error().fix.empty()) << text;
  }
  EXPECT_EQ(read(std::string("A=a\0b\n", 6)),
            "error f.env:1:1: the value of A contains a NUL byte");
}

TEST(EnvFileTest, SurvivesRandomText) {
  std::mt19937 random(5);
  const std::string alphabet = "AB1=='\"\\$`# \t\n{e\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t i = random() % 24; i > 0; --i) text += alphabet[random() % alphabet.size()];
    const Result<Environment> parsed = parse_env_file(text, "f", kCaller);
    if (!parsed.ok()) {
      EXPECT_TRUE(parsed.error().message.starts_with("f:")) << text;
      continue;
    }
    for (const EnvVariable& variable : parsed.value()) {
      EXPECT_TRUE(is_env_name(variable.name)) << text;
      EXPECT_EQ(variable.value.find('\n'), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace ivy
