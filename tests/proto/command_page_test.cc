// SPDX-License-Identifier: Apache-2.0
#include "proto/pages/command_page.h"

#include <gtest/gtest.h>

#include "proto/pages/completions.h"

namespace ivy {
namespace {

CommandPage page() {
  CommandPage page;
  page.name = "tool-x";
  page.summary = "do something";
  page.usages = {"tool-x [flags]"};
  page.description = "Does it.";
  page.sections = {{"where",
                    "Where",
                    {{{"-n", "--number"}, "N", "how many; it's `N`", {"--np"}},
                     {{"--kind"}, "auto|none|FILE", "which", {}, false}}}};
  return page;
}

CommandPage page_with_verbs() {
  CommandPage page;
  page.name = "ctl";
  page.verbs = {{"ps", "ps [--json]", "list", {{{"--json"}, "", "for programs"}}, "", {"ctl ps"}}};
  return page;
}

TEST(CommandPage, DailyHelpOmitsRareFlags) {
  const std::string daily = help_text(page(), HelpLength::kDaily);
  EXPECT_NE(daily.find("  -n, --number N          how many"), std::string::npos) << daily;
  EXPECT_EQ(daily.find("--kind"), std::string::npos);
  EXPECT_NE(help_text(page(), HelpLength::kAll).find("      --kind auto|none|FILE"),
            std::string::npos);
}

TEST(CommandPage, FindsHelpForTopicsFlagsAndVerbs) {
  EXPECT_TRUE(topic_help(page(), "where")->starts_with("Where:\n"));
  EXPECT_NE(topic_help(page(), "--np")->find("--number N"), std::string::npos);
  EXPECT_NE(topic_help(page(), "number")->find("also written --np"), std::string::npos);
  EXPECT_FALSE(topic_help(page(), "elsewhere"));
  EXPECT_NE(topic_help(page_with_verbs(), "ps")->find("Examples:\n  ctl ps"), std::string::npos);
}

TEST(CommandPage, SplitsAValueIntoWordsFilesAndDirectories) {
  const ValueChoices words = value_choices(page().sections[0].options[1]);
  EXPECT_EQ(words.words, (std::vector<std::string>{"auto", "none"}));
  EXPECT_TRUE(words.is_file);
  EXPECT_FALSE(words.is_directory);
}

TEST(CommandPage, HelpFitsTheWidth) {
  CommandPage narrow = page();
  narrow.width = 40;
  narrow.description = "A description that is longer than forty columns and is wrapped.";
  narrow.sections[0].options[0].text = "a text that does not fit into the rest of one line";
  narrow.sections[0].options[1].value = "auto|none|first|second|third|fourth|fifth|sixth|FILE";
  std::string text = help_text(narrow, HelpLength::kAll);
  while (!text.empty()) {
    const std::string line = text.substr(0, text.find('\n'));
    EXPECT_LE(line.size(), 40u) << line;
    text.erase(0, line.size() + 1);
  }
}

TEST(CommandPage, DailyHelpShowsTheFirstClause) {
  EXPECT_EQ(help_text(page(), HelpLength::kDaily).find("it's `N`"), std::string::npos);
}

TEST(Completions, CompletesFlagsAndValuesOfALauncher) {
  const CommandPage launcher = page();
  EXPECT_EQ(completions(launcher, {"--ki"}), "--kind\twhich\n");
  EXPECT_EQ(completions(launcher, {"--kind", "a"}), "auto\n");
  EXPECT_EQ(completions(launcher, {"--kind", "x"}), "@files\n");
  EXPECT_EQ(completions(launcher, {"--kind=n"}), "--kind=none\n");
  EXPECT_EQ(completions(launcher, {"--kind", "=", "n"}), "none\n");
  EXPECT_EQ(completions(launcher, {"--kind", "="}), "auto\nnone\n");
  EXPECT_EQ(completions(launcher, {"--np", "2", "py"}), "@program 3\n");
  EXPECT_EQ(completions(launcher, {"-n", "2", "x.py", "--ki"}), "@program 3\n");
}

TEST(Completions, HandlesASwitchWithAValueThatBashSplits) {
  CommandPage launcher = page();
  launcher.sections[0].options.push_back({{"--fast"}, "", "quickly"});
  EXPECT_EQ(completions(launcher, {"--fast", "=", "f"}), "");
  EXPECT_EQ(completions(launcher, {"--fast", "=", "false", "py"}), "@program 4\n");
  EXPECT_EQ(completions(launcher, {"--fast", "py"}), "@program 2\n");
}

TEST(Completions, ScriptsAcceptAnyProgramName) {
  CommandPage page = page_with_verbs();
  page.name = "PROGRAM-FUNCTION";
  EXPECT_NE(generated_page(page, "bash")->find("-F _PROGRAM_FUNCTION PROGRAM-FUNCTION\n"),
            std::string::npos);
}

TEST(Completions, CompletesVerbsJobsAndFlags) {
  CommandPage ctl = page_with_verbs();
  ctl.verbs.push_back({"logs", "logs [JOB]", "show output", {}, "", {}});
  const auto jobs = [](std::string_view value) {
    return value == "JOB" ? std::vector<std::string>{"bert", "3f2a"} : std::vector<std::string>{};
  };
  EXPECT_EQ(completions(ctl, {"l"}), "logs\tshow output\n");
  EXPECT_EQ(completions(ctl, {"ps", "--j"}), "--json\tfor programs\n");
  EXPECT_EQ(completions(ctl, {"logs", "b"}, jobs), "bert\n");
  EXPECT_EQ(completions(ctl, {"ps", "b"}, jobs), "");
  EXPECT_EQ(completions(ctl, {"nothing", "b"}, jobs), "");
}

TEST(CommandPage, GeneratesMarkdownAndCompletionScripts) {
  for (const char* form : {"markdown", "bash", "zsh", "fish"})
    EXPECT_NE(generated_page(page(), form)->find(form[0] == 'm' ? "--kind" : "tool_x"),
              std::string::npos)
        << form;
  EXPECT_FALSE(generated_page(page(), "man"));
  EXPECT_NE(markdown_item("x", "<b>").find("&lt;b>"), std::string::npos);
}

}  // namespace
}  // namespace ivy
