// Text of another host, or of a program there. It may contain terminal controls or begin a line
// that looks like ours, so it is not a std::string: a string converts to it implicitly, and its
// text for people always comes out escaped. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace ivy {

// Bytes that people may see on a terminal: control characters become \xNN, newlines stay. Controls
// are C0, DEL and C1, the latter in UTF-8 and as single bytes that belong to no UTF-8 character.
std::string escape_control(std::string_view text);

class RemoteText {
 public:
  RemoteText() = default;
  RemoteText(std::string bytes) : bytes_(std::move(bytes)) {}  // NOLINT: by intention
  RemoteText(const char* bytes) : bytes_(bytes) {}             // NOLINT: by intention

  bool empty() const { return bytes_.empty(); }
  // For people, as a part of one line: newlines are escaped too.
  std::string line() const;
  // For people, where the code that shows it indents each line (Diagnostic::cause).
  std::string lines() const { return escape_control(bytes_); }
  // Returns the position of `text` in it, or std::string::npos.
  std::size_t find(std::string_view text) const { return bytes_.find(text); }
  // The raw bytes for programs, such as an Error that is escaped where it is shown. Never show them
  // to people.
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
