// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "proto/contract/text.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

// Returns the length of the escape sequence at the start of the text.
std::size_t sequence_bytes(std::string_view text) {
  std::size_t end = 1;
  if (end < text.size() && text[end] == '[') ++end;
  while (end < text.size() && text[end] >= 0x20 && text[end] <= 0x3f) ++end;
  return std::min(end + 1, text.size());
}

}  // namespace

ColourVariables colour_variables() {
  return {own_variable("NO_COLOR"), own_variable("CLICOLOR_FORCE"), own_variable("CLICOLOR"),
          own_variable("TERM")};
}

Colour decide_colour(ColorChoice choice, bool is_terminal, const ColourVariables& variables) {
  if (choice == ColorChoice::kAlways) return Colour::kOn;
  if (choice == ColorChoice::kNever || !variables.no_color.empty()) return Colour::kOff;
  const std::string& force = variables.clicolor_force;
  if (!force.empty() && force != "0") return Colour::kOn;
  if (variables.clicolor == "0" || !is_terminal) return Colour::kOff;
  return variables.term == "dumb" || variables.term.empty() ? Colour::kOff : Colour::kOn;
}

bool is_capable_terminal(int fd) {
  if (isatty(fd) == 0) return false;
  const std::string term = own_variable("TERM");
  return !term.empty() && term != "dumb";
}

int terminal_columns(int fd) {
  constexpr int kUsual = 80;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

bool locale_is_utf8() {
  std::string locale = own_variable("LC_ALL");
  if (locale.empty()) locale = own_variable("LC_CTYPE");
  if (locale.empty()) locale = own_variable("LANG");
  locale = lower_case(locale);
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

std::string clip_to_columns(std::string_view text, int columns) {
  std::string out;
  int used = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0x1b) {
      const std::size_t length = sequence_bytes(text.substr(i));
      if (text[i + length - 1] == 'm') out += text.substr(i, length);
      i += length;
      continue;
    }
    const bool continues = (byte & 0xc0) == 0x80;
    if (!continues && byte >= 0x20 && byte != 0x7f && ++used > columns) break;
    if (byte >= 0x20 && byte != 0x7f) out += text[i];
    ++i;
  }
  return out;
}

}  // namespace ivy
