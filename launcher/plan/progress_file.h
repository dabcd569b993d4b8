// SPDX-License-Identifier: Apache-2.0
// --progress-file: compares the newest checkpoint after an attempt with that of earlier attempts.
// Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ivy {

// The files at one moment.
struct ProgressSample {
  bool is_known = false;  // False: they could not be read.
  std::string path = {};  // The newest file that matches; empty: none does.
  std::int64_t mtime_ns = 0;
  std::optional<double> number = {};  // The file's content, if that is only a number.
};

enum class ProgressMove { kForward, kNone, kBackward, kUnknown };

// Returns the number if the text has nothing but a number and white space.
std::optional<double> number_in_file(std::string_view text);

class ProgressFile {
 public:
  // Compares a sample with the best one so far, by the numbers in the files if both have one, else
  // by their modification times. The first known sample is only kept, because files may be older
  // than the job: it returns kUnknown.
  ProgressMove take(const ProgressSample& sample);
  // Describes the last known sample if it did not move forward: "latest.txt has 800, after 1000".
  std::string text() const;

 private:
  std::optional<ProgressSample> best_;
  ProgressSample last_;
};

}  // namespace ivy
