// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/diagnostic.h"

#include <iterator>
#include <string_view>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// In the order of the enumeration.
constexpr std::string_view kSeverities[] = {"note", "warning", "error"};
static_assert(std::size(kSeverities) == static_cast<std::size_t>(Severity::kError) + 1);

// Appends "  fix:   first line", with further lines below it.
void append_field(std::string& out, std::string_view label, const std::string& text) {
  constexpr std::size_t kIndent = 9;
  std::string_view rest = text;
  while (!rest.empty() && rest.back() == '\n') rest.remove_suffix(1);
  if (rest.empty()) return;
  std::string lead = "  " + std::string(label) + ":";
  lead.resize(kIndent, ' ');
  while (!rest.empty()) {
    out += lead + escape_control(take_part(rest, '\n')) + "\n";
    lead.assign(kIndent, ' ');
  }
}

}  // namespace

std::string headline(const Diagnostic& diagnostic) {
  std::string out(kSeverities[static_cast<std::size_t>(diagnostic.severity)]);
  if (!diagnostic.id.empty()) out += "[" + diagnostic.id + "]";
  // The first line is one sentence; more lines would look like worker output.
  return out + ": " + RemoteText(diagnostic.what).line();
}

std::string render(const Diagnostic& diagnostic) {
  std::string out = "ivyrun: " + headline(diagnostic) + "\n";
  append_field(out, "where", diagnostic.where);
  append_field(out, "cause", diagnostic.cause);
  append_field(out, "fix", diagnostic.fix);
  return out;
}

}  // namespace ivy
