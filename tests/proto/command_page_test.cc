#include "proto/pages/command_page.h"

#include <gtest/gtest.h>

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

TEST(CommandPage, HelpIsDailyOrWhole) {
  const std::string daily = help_text(page(), HelpLength::kDaily);
  EXPECT_NE(daily.find("  -n, --number N                how many"), std::string::npos) << daily;
  EXPECT_EQ(daily.find("--kind"), std::string::npos);
  EXPECT_NE(help_text(page(), HelpLength::kAll).find("      --kind auto|none|FILE"),
            std::string::npos);
}

TEST(CommandPage, HelpKnowsTopicsFlagsAndVerbs) {
  EXPECT_TRUE(topic_help(page(), "where")->starts_with("Where:\n"));
  EXPECT_NE(topic_help(page(), "--np")->find("--number N"), std::string::npos);
  EXPECT_NE(topic_help(page(), "number")->find("also written --np"), std::string::npos);
  EXPECT_FALSE(topic_help(page(), "elsewhere"));
  EXPECT_NE(topic_help(page_with_verbs(), "ps")->find("Examples:\n  ctl ps"), std::string::npos);
}

TEST(CommandPage, ValuesAreWordsFilesOrFolders) {
  const ValueWords words = value_words(page().sections[0].options[1]);
  EXPECT_EQ(words.words, (std::vector<std::string>{"auto", "none"}));
  EXPECT_TRUE(words.is_file);
  EXPECT_FALSE(words.is_directory);
}

TEST(CommandPage, EveryFormNamesEveryFlag) {
  for (const char* form : {"man", "markdown", "bash", "zsh", "fish"}) {
    const std::string text = *generated_page(page(), form);
    for (const std::string flag : {"number", "kind"})
      EXPECT_NE(text.find(flag), std::string::npos) << form << " " << flag;
    EXPECT_NE(generated_page(page_with_verbs(), form)->find("json"), std::string::npos) << form;
  }
  EXPECT_FALSE(generated_page(page(), "html"));
}

TEST(CommandPage, QuotesWhatTheFormReads) {
  EXPECT_NE(zsh_completion(page()).find("it'\\''s"), std::string::npos);
  EXPECT_NE(fish_completion(page()).find("it\\'s"), std::string::npos);
  EXPECT_NE(man_page(page()).find("it\\(aqs \\(gaN\\(ga"), std::string::npos);
  EXPECT_NE(markdown_item("x", "<b>").find("&lt;b>"), std::string::npos);
}

}  // namespace
}  // namespace ivy
