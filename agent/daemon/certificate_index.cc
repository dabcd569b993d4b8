#include "agent/daemon/certificate_index.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

constexpr std::string_view kHeading =
    "# Certificates of this CA: serial, role, name, not after, status, directory. ivy-agent writes "
    "it.\n";
constexpr std::size_t kFields = 6;

std::string role_name(CertificateRole role) {
  return role == CertificateRole::kHost ? "host" : "user";
}

bool parse_seconds(std::string_view text, std::int64_t& out) {
  out = to_number<std::int64_t>(text).value_or(-1);
  return out >= 0;
}

bool is_serial(std::string_view text) {
  return !text.empty() && text.size() <= 40 && is_hexadecimal(text);
}

// False: too few or too many fields.
bool split_fields(std::string_view line, std::array<std::string_view, kFields>& fields) {
  for (std::size_t i = 0; i < kFields; ++i) {
    const std::size_t tab = line.find('\t');
    const bool is_last = i + 1 == kFields;
    if ((tab == std::string_view::npos) != is_last) return false;
    fields[i] = line.substr(0, tab);
    if (!is_last) line.remove_prefix(tab + 1);
  }
  return true;
}

// False: the line is not in our format.
bool parse_line(std::string_view line, IssuedCertificate& out) {
  std::array<std::string_view, kFields> fields;
  if (!split_fields(line, fields)) return false;
  const auto& [serial, role, name, not_after, status, directory] = fields;
  if (!is_serial(serial) || (role != "host" && role != "user")) return false;
  out.serial = serial;
  out.role = role == "host" ? CertificateRole::kHost : CertificateRole::kUser;
  out.name = name;
  out.directory = directory;
  if (!check_certificate_name(out.role, name) || !parse_seconds(not_after, out.not_after)) {
    return false;
  }
  if (status == "valid") return true;
  return parse_seconds(status, out.revoked_at) && out.revoked_at > 0;
}

// The serials of the last certificate of each name.
std::set<std::string_view> newest_serials(const std::vector<IssuedCertificate>& issued) {
  std::map<std::pair<CertificateRole, std::string_view>, std::string_view> newest;
  for (const IssuedCertificate& one : issued) newest[{one.role, one.name}] = one.serial;
  std::set<std::string_view> serials;
  for (const auto& [name, serial] : newest) serials.insert(serial);
  return serials;
}

std::string state_of(const IssuedCertificate& one, bool newest, std::int64_t now_unix_s) {
  if (one.revoked_at != 0) return "revoked " + certificate_date(one.revoked_at);
  if (one.not_after <= now_unix_s) return "expired";
  if (!newest) return "replaced";
  return "valid";
}

}  // namespace

std::string index_text(const std::vector<IssuedCertificate>& issued) {
  std::string text(kHeading);
  for (const IssuedCertificate& one : issued) {
    text += one.serial + "\t" + role_name(one.role) + "\t" + one.name + "\t" +
            std::to_string(one.not_after) + "\t" +
            (one.revoked_at == 0 ? "valid" : std::to_string(one.revoked_at)) + "\t" +
            one.directory + "\n";
  }
  return text;
}

Result<std::vector<IssuedCertificate>> parse_index(std::string_view text, const std::string& path) {
  std::vector<IssuedCertificate> issued;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const bool is_cut = end == std::string_view::npos;
    text.remove_prefix(is_cut ? text.size() : end + 1);
    if (line.starts_with('#')) continue;
    IssuedCertificate one;
    if (is_cut || !parse_line(line, one)) {
      return Error{Code::kFailedPrecondition,
                   path + ":" + std::to_string(number) + ": not a line that ivy-agent wrote",
                   "put the file back from a copy: revocation lists are made from it"};
    }
    issued.push_back(std::move(one));
    if (issued.size() > kMaxIssued) {
      return Error{Code::kResourceExhausted,
                   path + " lists more than " + std::to_string(kMaxIssued) + " certificates",
                   "start a new CA: `ivy-agent ca init --ca DIR`"};
    }
  }
  return issued;
}

const IssuedCertificate* newest_of(const std::vector<IssuedCertificate>& issued,
                                   CertificateRole role, std::string_view name) {
  const auto found = std::find_if(
      issued.rbegin(), issued.rend(),
      [&](const IssuedCertificate& one) { return one.role == role && one.name == name; });
  return found == issued.rend() ? nullptr : &*found;
}

std::string index_table(const std::vector<IssuedCertificate>& issued, std::int64_t now_unix_s) {
  std::vector<TextRow> rows{{"CERTIFICATE", "STATE", "NOT AFTER", "SERIAL"}};
  const std::set<std::string_view> newest_ones = newest_serials(issued);
  std::string warnings;
  for (const IssuedCertificate& one : issued) {
    const bool newest = newest_ones.contains(one.serial);
    if (!newest && one.not_after <= now_unix_s) continue;
    const std::string who = role_name(one.role) + "/" + one.name;
    rows.push_back(
        {who, state_of(one, newest, now_unix_s), certificate_date(one.not_after), one.serial});
    const std::string warning = expiry_warning(one.not_after, now_unix_s);
    if (!newest || one.revoked_at != 0 || warning.empty()) continue;
    warnings += who + " " + warning + ": `ivy-agent renew " +
                (one.role == CertificateRole::kUser ? "--user " : "") + one.name + "`\n";
  }
  if (rows.size() == 1) return "no certificates\n";
  return text_columns(rows, "") + warnings;
}

}  // namespace ivy
