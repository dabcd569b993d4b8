// The forms of a page that people read elsewhere: the manual's, and the documentation's.
#include "proto/contract/build.h"
#include "proto/contract/text.h"
#include "proto/pages/command_page.h"

namespace ivy {
namespace {

// Text that roff takes literally.
std::string roff(std::string_view text) {
  std::string out;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '`') {
      out += "\\(ga";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '~') {
      out += "\\(ti";
    } else if (c == '^') {
      out += "\\(ha";
    } else {
      out += c;
    }
    begins_line = c == '\n';
  }
  return out;
}

// As it stands, in the manual: no filling of lines.
std::string literal_block(const std::string& text) {
  return ".PP\n.nf\n" + roff(text) + (text.ends_with('\n') ? "" : "\n") + ".fi\n";
}

std::string roff_options(const std::vector<PageOption>& options) {
  std::string text;
  for (const PageOption& option : options) {
    text += ".TP\n.B " + roff(typed_option(option)) + "\n" + roff(option.text) + "\n";
    if (!option.aliases.empty())
      text += ".br\nAlso written " + roff(joined(option.aliases, ", ")) + "\n";
  }
  return text;
}

std::string roff_verbs(const CommandPage& page) {
  std::string text;
  for (const PageVerb& verb : page.verbs) {
    text += ".SS " + roff(page.name + " " + verb.usage) + "\n" + roff(verb.text) + "\n";
    text += roff_options(verb.options);
    if (!verb.more.empty()) text += literal_block(verb.more);
    if (!verb.examples.empty()) text += literal_block(joined(verb.examples, "\n"));
  }
  return text;
}

std::string upper_case(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

std::string markdown_options(const std::vector<PageOption>& options) {
  std::string text;
  for (const PageOption& option : options) {
    std::string what = option.text;
    if (!option.aliases.empty()) what += "; also `" + joined(option.aliases, "`, `") + "`";
    text += markdown_item("`" + typed_option(option) + "`", what);
  }
  return text;
}

}  // namespace

std::string man_page(const CommandPage& page) {
  std::string text = ".TH " + upper_case(page.name) + " " + page.section + " \"\" \"ivyrun " +
                     std::string(version()) + "\"\n";
  text += ".SH NAME\n" + roff(page.name) + " \\- " + roff(page.summary) + "\n";
  text += ".SH SYNOPSIS\n" + literal_block(joined(page.usages, "\n")).substr(4);
  text += ".SH DESCRIPTION\n" + roff(page.description) + "\n";
  if (!page.examples.empty()) text += ".SH EXAMPLES\n";
  for (const auto& [typed, what] : page.examples)
    text += ".TP\n.B " + roff(typed) + "\n" + roff(what) + "\n";
  if (!page.verbs.empty()) text += ".SH VERBS\n" + roff_verbs(page);
  for (const PageSection& section : page.sections)
    text += ".SH " + roff(upper_case(section.title)) + "\n" + roff_options(section.options);
  if (!page.closing.empty()) text += ".SH NOTES\n" + literal_block(page.closing).substr(4);
  return text;
}

std::string markdown_item(std::string_view typed, std::string_view text) {
  constexpr std::size_t kPageWidth = 118;
  std::string out;
  std::string line = "- " + std::string(typed) + ":";
  for (const std::string_view word : words_of(text)) {
    if (line.size() + word.size() + 1 > kPageWidth) {
      out += line + "\n";
      line = " ";
    }
    line += " ";
    for (const char c : word) line += c == '<' ? std::string("&lt;") : std::string(1, c);
  }
  return out + line + "\n";
}

std::string markdown_page(const CommandPage& page) {
  std::string text;
  for (const PageSection& section : page.sections)
    text += "\n## " + section.title + "\n" + markdown_options(section.options);
  for (const PageVerb& verb : page.verbs) {
    text += "\n## " + page.name + " " + verb.name + "\n`" + page.name + " " + verb.usage +
            "`: " + verb.text + ".\n";
    if (!verb.options.empty()) text += "\n" + markdown_options(verb.options);
  }
  return text;
}

}  // namespace ivy
