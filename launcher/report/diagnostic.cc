#include "launcher/report/diagnostic.h"

#include <string_view>

namespace ivy {
namespace {

std::string_view severity_word(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "error";
}

// "  fix:   first line" with further lines below it.
void append_field(std::string& out, std::string_view label, const std::string& text) {
  constexpr std::size_t kIndent = 9;
  std::string_view rest = text;
  while (!rest.empty() && rest.back() == '\n') rest.remove_suffix(1);
  if (rest.empty()) return;
  std::string lead = "  " + std::string(label) + ":";
  lead.resize(kIndent, ' ');
  while (true) {
    const std::size_t end = rest.find('\n');
    out += lead + escape_control(rest.substr(0, end)) + "\n";
    if (end == std::string_view::npos) return;
    rest.remove_prefix(end + 1);
    lead.assign(kIndent, ' ');
  }
}

}  // namespace

std::string render(const Diagnostic& diagnostic) {
  std::string out = "ivyrun: ";
  out += severity_word(diagnostic.severity);
  if (!diagnostic.id.empty()) out += "[" + diagnostic.id + "]";
  // The first line ends where the sentence does; more lines would look like worker output.
  out += ": " + RemoteText(diagnostic.what).line() + "\n";
  append_field(out, "where", diagnostic.where);
  append_field(out, "cause", diagnostic.cause);
  append_field(out, "fix", diagnostic.fix);
  return out;
}

}  // namespace ivy
