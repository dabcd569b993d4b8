#include "launcher/job/waiting_line.h"

#include <algorithm>
#include <map>

#include "launcher/options/hosts.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxGroups = 4;

}  // namespace

std::string waiting_line(std::size_t up, std::size_t total, std::chrono::seconds elapsed,
                         const std::vector<WaitingHost>& waiting) {
  std::string line = "hosts " + std::to_string(up) + "/" + std::to_string(total) + " up after " +
                     std::to_string(elapsed.count()) + " s";
  std::map<std::string, std::vector<std::string>> groups;
  for (const WaitingHost& host : waiting) groups[host.doing.line()].push_back(host.name);
  std::size_t written = 0;
  for (const auto& [doing, names] : groups) {
    if (written == kMaxGroups) {
      line += ", ...";
      break;
    }
    line += written == 0 ? ", waiting for " : ", ";
    line += fold_host_names(names);
    if (!doing.empty()) line += " (" + doing + ")";
    ++written;
  }
  return line;
}

}  // namespace ivy
