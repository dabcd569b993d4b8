// SPDX-License-Identifier: Apache-2.0
// Text from another host, or from a program there. It may contain terminal controls or imitate
// ivyrun's own lines, so it is not a std::string: strings convert to it implicitly, but it is
// always escaped for display. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace ivy {

// Escapes text for display on a terminal: control characters become \xNN, newlines are kept.
// Controls are C0, DEL and C1, the latter both in UTF-8 and as single bytes outside any UTF-8
// character.
std::string escape_control(std::string_view text);

class RemoteText {
 public:
  RemoteText() = default;
  RemoteText(std::string bytes) : bytes_(std::move(bytes)) {}  // NOLINT: by intention
  RemoteText(const char* bytes) : bytes_(bytes) {}             // NOLINT: by intention

  bool empty() const { return bytes_.empty(); }
  // Returns the text as part of one line for people; newlines are escaped, too.
  std::string line() const;
  // Returns the text for people, for code that indents each line (Diagnostic::cause).
  std::string lines() const { return escape_control(bytes_); }
  // Returns the position of `text`, or std::string::npos.
  std::size_t find(std::string_view text) const { return bytes_.find(text); }
  // Returns the raw bytes for programs, such as an Error, which is escaped when it is shown. Never
  // show them to people.
  const std::string& bytes() const { return bytes_; }

  RemoteText& operator+=(const RemoteText& more) {
    bytes_ += more.bytes_;
    return *this;
  }
  friend RemoteText operator+(RemoteText first, const RemoteText& second) {
    return first += second;
  }
  friend bool operator==(const RemoteText& a, const RemoteText& b) { return a.bytes_ == b.bytes_; }

 private:
  std::string bytes_;
};

}  // namespace ivy
