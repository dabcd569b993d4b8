// SPDX-License-Identifier: Apache-2.0
// A page in the text format of Prometheus. Pure. Thread: one at a time.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace ivy {

// Returns the value of a label in quotes. The format escapes quotes, backslashes and newlines.
inline std::string quoted_label(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text + "\"";
}

class MetricsPage {
 public:
  // Every name starts with `prefix`, and every sample has these labels, such as `job_id="7"`.
  MetricsPage(std::string prefix, std::string labels)
      : prefix_(std::move(prefix)), labels_(std::move(labels)) {}

  // Starts a metric; its samples follow. `kind` is "gauge" or "counter".
  void begin(std::string_view name, std::string_view kind, std::string_view help) {
    name_ = prefix_ + std::string(name);
    text_ += "# HELP " + name_ + " " + std::string(help) + "\n# TYPE " + name_ + " " +
             std::string(kind) + "\n";
  }
  void add(std::string_view labels, double value) {
    char number[32];
    std::snprintf(number, sizeof number, "%.15g", value);
    text_ += name_ + "{" + labels_ + (labels.empty() ? "" : ",") + std::string(labels) + "} " +
             number + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string prefix_;
  const std::string labels_;
  std::string name_;  // Of the current metric, with the prefix.
  std::string text_;
};

}  // namespace ivy
