// SPDX-License-Identifier: Apache-2.0
// A cgroup (version 1 or 2) below the test's, with limits that the kernel enforces. Processes in it
// are children of the test.
//
// If none can be created (no root, no controller, or a controller that is not delegated), why_not()
// returns the reason, for GTEST_SKIP.
#pragma once

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

namespace ivy::test {

class RealCgroup {
 public:
  explicit RealCgroup(const std::string& controller) {
    const std::string own = directory_of(controller);
    if (own.empty()) {
      why_not_ = "no cgroup of this process has the controller " + controller;
      return;
    }
    path_ = own + "/ivytest-" + std::to_string(getpid());
    if (mkdir(path_.c_str(), 0755) != 0) {
      why_not_ = "mkdir " + path_ + ": " + std::strerror(errno);
      path_.clear();
    }
  }
  ~RealCgroup() {
    // Processes that have just exited may still be counted there.
    for (int tries = 0; !path_.empty() && rmdir(path_.c_str()) != 0 && tries < 100; ++tries)
      usleep(10'000);
  }
  RealCgroup(const RealCgroup&) = delete;
  RealCgroup& operator=(const RealCgroup&) = delete;

  const std::string& why_not() const { return why_not_; }
  bool is_second() const { return is_second_; }
  // Returns false, with the reason in why_not(), if the kernel rejects the value.
  bool set(const std::string& file, const std::string& value) {
    std::ofstream out(path_ + "/" + file);
    out << value << std::flush;
    if (!out) why_not_ = path_ + "/" + file + " does not take " + value;
    return static_cast<bool>(out);
  }
  bool limit_memory(std::size_t bytes) {
    return set(is_second_ ? "memory.max" : "memory.limit_in_bytes", std::to_string(bytes));
  }
  // Limits the processor time in each period of 100,000 microseconds.
  bool limit_processor(int microseconds) {
    if (is_second_) return set("cpu.max", std::to_string(microseconds) + " 100000");
    return set("cpu.cfs_period_us", "100000") &&
           set("cpu.cfs_quota_us", std::to_string(microseconds));
  }
  // Moves the calling process there. Call it only in a child of the test.
  bool enter() const {
    std::ofstream out(path_ + "/cgroup.procs");
    out << getpid() << std::flush;
    return static_cast<bool>(out);
  }
  // Runs `body` in a child in the cgroup. Returns its result, or 128 plus the signal that killed
  // it.
  int run(const std::function<int()>& body) const {
    const pid_t child = fork();
    if (child == 0) _exit(enter() ? body() : 127);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // A mount may show only the part of the hierarchy below this process's cgroup.
  static std::string below(const std::string& mount, const std::string& path) {
    if (std::filesystem::is_directory(mount + path)) return mount + path;
    return std::filesystem::is_directory(mount) ? mount : "";
  }
  std::string directory_of(const std::string& controller) {
    std::istringstream lines(text_of("/proc/self/cgroup"));
    std::string second;
    for (std::string line; std::getline(lines, line);) {
      const std::size_t named = line.find(':') + 1;
      const std::size_t placed = line.find(':', named);
      const std::string names = "," + line.substr(named, placed - named) + ",";
      const std::string path = line.substr(placed + 1) == "/" ? "" : line.substr(placed + 1);
      if (names == ",,") second = below("/sys/fs/cgroup", path);
      if (names.find("," + controller + ",") != std::string::npos)
        return below("/sys/fs/cgroup/" + line.substr(named, placed - named), path);
    }
    is_second_ = true;
    if (second.empty()) return "";
    // Works if the controller is or can be delegated, but not if the cgroup itself contains
    // processes.
    std::ofstream(second + "/cgroup.subtree_control") << "+" << controller << std::flush;
    const std::string handed_down = text_of(second + "/cgroup.subtree_control");
    return handed_down.find(controller) == std::string::npos ? "" : second;
  }

  bool is_second_ = false;
  std::string path_;
  std::string why_not_;
};

}  // namespace ivy::test
