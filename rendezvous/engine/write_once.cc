#include "rendezvous/engine/write_once.h"

#include <algorithm>

namespace ivy::store {

bool write_once_by_name(std::string_view torch_key) {
  constexpr std::string_view kGroups = "/default_pg/";
  const std::size_t found = torch_key.rfind(kGroups);
  if (found == std::string_view::npos) return false;
  std::string_view rest = torch_key.substr(found + kGroups.size());
  const std::size_t slash = rest.find('/');
  if (slash == 0 || slash == std::string_view::npos) return false;
  const std::string_view group = rest.substr(0, slash);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!std::all_of(group.begin(), group.end(), is_digit)) return false;
  rest.remove_prefix(slash + 1);
  const std::size_t last = rest.rfind('/');
  return last != std::string_view::npos && last + 1 < rest.size();
}

}  // namespace ivy::store
