#include "proto/os/user_places.h"

namespace ivy {

bool is_job_id(std::string_view text) {
  return text.size() == kJobIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string place_in_tmp(std::uint32_t uid) { return "/tmp/ivyrun-" + std::to_string(uid); }

std::string place_in_runtime_directory(const char* xdg_runtime_dir) {
  if (xdg_runtime_dir == nullptr || xdg_runtime_dir[0] != '/') return {};
  return std::string(xdg_runtime_dir) + "/ivyrun";
}

std::vector<std::string> job_parents(std::uint32_t uid, const char* xdg_runtime_dir) {
  std::vector<std::string> places{place_in_tmp(uid), "/dev/shm/ivyrun-" + std::to_string(uid)};
  std::string runtime = place_in_runtime_directory(xdg_runtime_dir);
  if (!runtime.empty()) places.push_back(std::move(runtime));
  return places;
}

}  // namespace ivy
