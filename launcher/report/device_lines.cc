// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/device_lines.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace ivy {
namespace {

constexpr std::size_t kMaxDeviceLines = 8;

// Returns 0 for its own device, 1 for its host, 2 for other hosts.
int distance_of(const DeviceNote& note, const WorkerEnd& first) {
  if (note.rank == first.rank) return 0;
  return note.host == first.host ? 1 : 2;
}

std::vector<DeviceNote> nearest_first(std::vector<DeviceNote> notes, const WorkerEnd* first) {
  if (first != nullptr)
    std::stable_sort(notes.begin(), notes.end(), [first](const DeviceNote& a, const DeviceNote& b) {
      return distance_of(a, *first) < distance_of(b, *first);
    });
  return notes;
}

// Returns the time relative to the rank's exit: ", 2.0 s before".
std::string when(const DeviceNote& note, const WorkerEnd* first) {
  if (!note.at_ns || first == nullptr) return "";
  const std::int64_t before_ns = first->at_ns - *note.at_ns;
  char text[40];
  std::snprintf(text, sizeof text, ", %.1f s %s", static_cast<double>(std::abs(before_ns)) / 1e9,
                before_ns >= 0 ? "before" : "after");
  return text;
}

}  // namespace

std::vector<std::string> device_lines(const std::vector<DeviceNote>& notes,
                                      const WorkerEnd* first) {
  std::vector<std::string> lines;
  for (const DeviceNote& note : nearest_first(notes, first)) {
    if (lines.size() == kMaxDeviceLines) break;
    lines.push_back(note.device + " on " + note.host +
                    (note.rank ? " (rank " + std::to_string(*note.rank) + ")" : "") + ": " +
                    note.text + when(note, first));
  }
  if (notes.size() > lines.size())
    lines.push_back("and " + std::to_string(notes.size() - lines.size()) + " more");
  return lines;
}

std::string device_reason(const std::vector<DeviceNote>& notes, const WorkerEnd& first) {
  const std::vector<DeviceNote> sorted = nearest_first(notes, &first);
  if (sorted.empty() || sorted.front().host != first.host) return "";
  return sorted.front().device + ": " + sorted.front().text;
}

}  // namespace ivy
