// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/label.h"

#include <algorithm>
#include <array>

#include "launcher/report/placeholders.h"

namespace ivy {
namespace {

// Two rounds of the six colours that are readable on light and dark backgrounds.
constexpr std::array<std::string_view, 12> kColorCodes = {"36", "32", "33", "34", "35", "31",
                                                          "96", "92", "93", "94", "95", "91"};
// A longer host name is shown in full, but does not widen the other labels.
constexpr std::size_t kMaxHostWidth = 24;

std::string padded(std::string text, std::size_t width, char fill) {
  if (text.size() < width) text.insert(0, width - text.size(), fill);
  return text;
}

// Returns " #2/4", equally wide for all attempts; empty if there is only one attempt.
std::string attempt_mark(const LabelStyle& style) {
  if (style.max_attempts <= 1) return "";
  const std::string last = std::to_string(style.max_attempts);
  const std::string number = "#" + std::to_string(style.generation + 1);
  return " " + padded(number, last.size() + 1, ' ') + "/" + last;
}

std::string bracketed(const LabelStyle& style, const LabelSubject& subject) {
  const bool is_error = subject.stream == 2;
  const std::string rank =
      padded(std::to_string(subject.rank), std::to_string(style.max_rank).size(), ' ');
  if (style.choice == "host") return std::string(is_error ? "[!" : "[") + std::string(subject.host);
  if (style.choice == "rank" || style.hosts <= 1) return (is_error ? "[!" : "[") + rank;
  std::string text = (is_error ? "[!" : "[ ") + rank + " " + std::string(subject.host);
  const std::size_t width = std::min(style.host_width, kMaxHostWidth);
  if (subject.host.size() < width) text.append(width - subject.host.size(), ' ');
  return text;
}

PlaceholderValues placeholder_values(const LabelStyle& style, const LabelSubject& subject) {
  return {.rank = subject.rank,
          .local_rank = subject.local_rank,
          .host_index = subject.host_index,
          .host = subject.host,
          .job_id = style.job_id,
          .stream = subject.stream,
          .generation = style.generation};
}

}  // namespace

std::string make_label(const LabelStyle& style, const LabelSubject& subject, Colour colour) {
  const std::string& choice = style.choice;
  if (choice == "none" || (choice == "auto" && style.shown_ranks <= 1)) return "";
  const bool is_template = choice != "auto" && choice != "rank" && choice != "host";
  std::string label = is_template ? filled_template(choice, placeholder_values(style, subject))
                                  : bracketed(style, subject) + attempt_mark(style) + "]";
  if (colour == Colour::kOn) {
    const std::string_view color_code =
        kColorCodes[static_cast<std::size_t>(subject.rank) % kColorCodes.size()];
    label = "\x1b[" + std::string(color_code) + "m" + label + "\x1b[0m";
  }
  // A template is used literally; other labels are followed by a blank.
  return is_template ? label : label + " ";
}

}  // namespace ivy
