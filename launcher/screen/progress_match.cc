// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/progress_match.h"

#include <algorithm>

namespace ivy {

void ProgressMatch::begin() {
  unfinished_.clear();
  largest_.reset();
  first_.reset();
}

void ProgressMatch::feed(int rank, int stream, std::string_view bytes, bool end) {
  std::string& line = unfinished_[{rank, stream}];
  while (!bytes.empty()) {
    const std::size_t stop = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, stop);
    line.append(part.substr(0, kMaxLineBytes - std::min(line.size(), kMaxLineBytes)));
    if (stop == std::string_view::npos) break;
    match(line);
    line.clear();
    bytes.remove_prefix(stop + 1);
  }
  if (!end) return;
  match(line);
  unfinished_.erase({rank, stream});
}

void ProgressMatch::match(std::string_view line) {
  if (line.empty()) return;
  const std::optional<double> step = pattern_.number_in(line);
  if (step && !first_) first_ = step;
  if (step && (!largest_ || *step > *largest_)) largest_ = step;
}

}  // namespace ivy
