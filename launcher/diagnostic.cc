#include "launcher/diagnostic.h"

#include <string_view>

namespace ivy {
namespace {

constexpr char kHex[] = "0123456789ABCDEF";

void append_hex(std::string& out, unsigned char byte) {
  out += "\\x";
  out += kHex[byte >> 4];
  out += kHex[byte & 0xf];
}

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
    out += lead + escape_control(std::string(rest.substr(0, end))) + "\n";
    if (end == std::string_view::npos) return;
    rest.remove_prefix(end + 1);
    lead.assign(kIndent, ' ');
  }
}

}  // namespace

std::string escape_control(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {
      // The C1 controls in UTF-8: some terminals obey them as they obey ESC.
      append_hex(out, byte);
      append_hex(out, next);
      ++i;
    } else if ((byte < 0x20 && byte != '\n') || byte == 0x7f) {
      append_hex(out, byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string render(const Diagnostic& diagnostic) {
  std::string out = "ivyrun: ";
  out += severity_word(diagnostic.severity);
  if (!diagnostic.id.empty()) out += "[" + diagnostic.id + "]";
  std::string what = escape_control(diagnostic.what);
  // The first line ends where the sentence does; more lines would look like worker output.
  for (std::size_t at = what.find('\n'); at != std::string::npos; at = what.find('\n', at))
    what.replace(at, 1, "\\x0A");
  out += ": " + what + "\n";
  append_field(out, "where", diagnostic.where);
  append_field(out, "cause", diagnostic.cause);
  append_field(out, "fix", diagnostic.fix);
  return out;
}

}  // namespace ivy
