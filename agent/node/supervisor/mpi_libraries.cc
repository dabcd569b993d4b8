// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/mpi_libraries.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "agent/node/facts/mpi_file.h"
#include "agent/node/spawn/process_tree.h"

namespace ivy {

std::vector<std::string> MpiLibraries::of_worker(pid_t worker) {
  if (worker <= 0) return {};
  std::vector<std::string> texts = of_process(worker);
  if (!texts.empty()) return texts;
  // Includes processes below a shell, make or Python. Parents precede their children in this order
  // unless start times are equal and pids have wrapped around; a process that is missed then is not
  // compared.
  std::set<pid_t> below = {worker};
  std::vector<ProcessStat> all = read_all_processes();
  std::sort(all.begin(), all.end(), [](const ProcessStat& a, const ProcessStat& b) {
    return a.start_time != b.start_time ? a.start_time < b.start_time : a.pid < b.pid;
  });
  for (const ProcessStat& process : all) {
    if (!below.contains(process.parent)) continue;
    below.insert(process.pid);
    texts = of_process(process.pid);
    if (!texts.empty()) return texts;
  }
  return {};
}

std::vector<std::string> MpiLibraries::of_process(pid_t process) {
  std::vector<std::string> texts;
  for (const std::string& path : mapped_mpi_libraries(process)) {
    const std::string& text = text_of(path);
    // A library may consist of several files.
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end())
      texts.push_back(text);
  }
  return texts;
}

const std::string& MpiLibraries::text_of(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return texts_[""];
  const std::string identity = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) +
                               ":" + std::to_string(status.st_mtim.tv_sec) + ":" +
                               std::to_string(status.st_mtim.tv_nsec);
  const auto known = texts_.find(identity);
  if (known != texts_.end()) return known->second;
  return texts_[identity] = mpi_text_of_file(path);
}

}  // namespace ivy
