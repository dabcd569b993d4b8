// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <map>
#include <optional>

namespace ivy {
namespace {

// Changes variables of this process and restores them at the end.
class TerminalTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const auto& [name, value] : saved_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
    for (const int fd : {master_, slave_})
      if (fd >= 0) close(fd);
  }
  void set(const std::string& name, const char* value) {
    const char* old = getenv(name.c_str());
    saved_.try_emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    if (value == nullptr) {
      unsetenv(name.c_str());
    } else {
      setenv(name.c_str(), value, 1);
    }
  }
  void open_terminal(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 20;
    ASSERT_EQ(openpty(&master_, &slave_, nullptr, nullptr, &size), 0);
  }
  std::map<std::string, std::optional<std::string>> saved_;
  int master_ = -1;
  int slave_ = -1;
};

TEST_F(TerminalTest, DecidesOnColourInOrder) {
  const ColourVariables usual{"", "", "", "xterm"};
  const struct {
    ColorChoice choice;
    bool is_terminal;
    ColourVariables variables;
    Colour expected;
  } cases[] = {
      {ColorChoice::kAuto, true, usual, Colour::kOn},
      {ColorChoice::kAuto, false, usual, Colour::kOff},
      {ColorChoice::kAuto, true, {"", "", "", "dumb"}, Colour::kOff},
      {ColorChoice::kAuto, true, {"", "", "", ""}, Colour::kOff},
      {ColorChoice::kAuto, true, {"1", "", "", "xterm"}, Colour::kOff},
      {ColorChoice::kAuto, true, {"1", "1", "", "xterm"}, Colour::kOff},
      {ColorChoice::kAuto, false, {"", "1", "", "xterm"}, Colour::kOn},
      {ColorChoice::kAuto, false, {"", "1", "0", "dumb"}, Colour::kOn},
      {ColorChoice::kAuto, false, {"", "0", "", "xterm"}, Colour::kOff},
      {ColorChoice::kAuto, true, {"", "0", "", "xterm"}, Colour::kOn},
      {ColorChoice::kAuto, true, {"", "", "0", "xterm"}, Colour::kOff},
      {ColorChoice::kAuto, true, {"", "", "1", "xterm"}, Colour::kOn},
      {ColorChoice::kAlways, false, {"1", "0", "0", "dumb"}, Colour::kOn},
      {ColorChoice::kNever, true, {"", "1", "1", "xterm"}, Colour::kOff},
  };
  for (std::size_t i = 0; i < std::size(cases); ++i)
    EXPECT_EQ(decide_colour(cases[i].choice, cases[i].is_terminal, cases[i].variables),
              cases[i].expected)
        << i;
}

TEST_F(TerminalTest, ReadsColourVariablesFromTheEnvironment) {
  set("NO_COLOR", "1");
  set("CLICOLOR_FORCE", nullptr);
  set("CLICOLOR", "0");
  set("TERM", "vt100");
  const ColourVariables variables = colour_variables();
  EXPECT_EQ(variables.no_color, "1");
  EXPECT_EQ(variables.clicolor_force, "");
  EXPECT_EQ(variables.clicolor, "0");
  EXPECT_EQ(variables.term, "vt100");
}

TEST_F(TerminalTest, TreatsATerminalThatIsNotDumbAsCapable) {
  open_terminal(80);
  set("TERM", "xterm");
  EXPECT_TRUE(is_capable_terminal(slave_));
  set("TERM", "dumb");
  EXPECT_FALSE(is_capable_terminal(slave_));
  set("TERM", nullptr);
  EXPECT_FALSE(is_capable_terminal(slave_));
  set("TERM", "xterm");
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_FALSE(is_capable_terminal(ends[1]));
  EXPECT_EQ(terminal_columns(ends[1]), 80);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(TerminalTest, FollowsTheColumnsOfTheWindow) {
  open_terminal(61);
  EXPECT_EQ(terminal_columns(slave_), 61);
  winsize size{};
  size.ws_col = 132;
  ASSERT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(terminal_columns(slave_), 132);
  // A terminal that does not know its size, as on some serial lines.
  size.ws_col = 0;
  ASSERT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(terminal_columns(slave_), 80);
}

TEST_F(TerminalTest, FindsTheEffectiveLocale) {
  const struct {
    const char* all;
    const char* ctype;
    const char* lang;
    bool is_utf8;
  } cases[] = {
      {nullptr, nullptr, "C.UTF-8", true},  {nullptr, nullptr, "de_DE.utf8", true},
      {nullptr, nullptr, "C", false},       {nullptr, nullptr, nullptr, false},
      {nullptr, "POSIX", "C.UTF-8", false}, {nullptr, "en_US.UTF-8", "C", true},
      {"C", "en_US.UTF-8", nullptr, false}, {"en_US.UTF-8", "C", "C", true},
      {"", "", "en_US.UTF-8", true},
  };
  for (const auto& [all, ctype, lang, is_utf8] : cases) {
    set("LC_ALL", all);
    set("LC_CTYPE", ctype);
    set("LANG", lang);
    EXPECT_EQ(locale_is_utf8(), is_utf8) << (all ? all : "-") << (ctype ? ctype : "-");
  }
}

TEST_F(TerminalTest, ClipsToColumns) {
  const struct {
    const char* text;
    int columns;
    const char* clipped;
  } cases[] = {
      {"", 5, ""},
      {"abc", 3, "abc"},
      {"abcd", 3, "abc"},
      {"abc", 0, ""},
      {"a\tb\rc\x07", 9, "abc"},
      {"\u2026\u00e4x", 2, "\u2026\u00e4"},           // Characters, not bytes.
      {"\x1b[31mred\x1b[0m", 2, "\x1b[31mre"},        // Colours take no columns
      {"\x1b[31mre\x1b[0m", 2, "\x1b[31mre\x1b[0m"},  // and are kept together with text.
      {"a\x1b[2Jb\x1b[Hc", 9, "abc"},                 // Other sequences are removed.
      {"a\x1b", 9, "a"},
      {"a\x1b[", 9, "a"},
      {"a\x1b[31", 9, "a"},
  };
  for (const auto& [text, columns, clipped] : cases)
    EXPECT_EQ(clip_to_columns(text, columns), clipped) << text;
}

}  // namespace
}  // namespace ivy
