// The verbs of `ivy-agent` that make certificates: ca init, cert, renew, revoke, certs. Each
// function does the whole verb and returns the text to print; nothing listens, nothing is sent
// anywhere.
//
// The directory of a CA, 0700, of one user:
//   ca.key       0600; its owner can launch as any user: keep a copy off line
//   ca.crt       what agents and launchers trust
//   ca.crl       revoked certificates, signed; empty at first
//   issued.txt   what was signed: certificate_index.h
//   issued/      a copy of each certificate, SERIAL.crt, from which `renew` takes the names
//
// Every file is written beside its place, synced and renamed; verbs on one CA take turns (flock, 10
// s at most). A verb that fails half way leaves at worst a line in issued.txt for a certificate
// that does not exist.
//
// Thread: any; blocks. Errors: InvalidArgument (a name, a number), NotFound (no CA, no such
// certificate), AlreadyExists (would overwrite what is not its own), PermissionDenied (directory or
// key open to others), FailedPrecondition (CA expired or damaged), Unavailable (file system, lock).
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/trust/agent_config.h"

namespace ivy {

// $XDG_CONFIG_HOME/ivyrun, else $HOME/.config/ivyrun; empty when neither is set.
std::string ivyrun_config_directory(const Environment& environment);

// The directory of the CA, for every verb, and today's date.
struct CertificateAuthorityPlace {
  std::string config_directory;
  std::string directory;  // From --ca; empty means config_directory/ca.
  std::int64_t now_unix_s = std::time(nullptr);
};

// ca init [--ca DIR] [--name TEXT] [--days 3650]. Never overwrites a CA.
struct CaInitArguments {
  CertificateAuthorityPlace place;
  std::string name;  // Empty: "ivyrun CA HOST DATE".
  int days = 3650;
};
Result<std::string> ca_init(const CaInitArguments& arguments);

// cert HOST [ALIAS...] --serves USER|--serves-any [--out DIR] [--days 365]: ca.crt, ca.crl,
// host.crt and host.key for one host.
struct HostCertificateArguments {
  CertificateAuthorityPlace place;
  std::string host;                  // A DNS name or a numeric address.
  std::vector<std::string> aliases;  // By which launchers may dial it too.
  std::string serves;
  std::string out;  // Empty: the host's name, in the working directory.
  int days = 365;
};
Result<std::string> make_host_certificate(const HostCertificateArguments& arguments);

// cert --user NAME [--port N] [--out DIR] [--days 90]: ca.crt, ca.crl, user.crt, user.key and
// agent.toml for one user. AlreadyExists when files of another user or of another CA are there.
struct UserCertificateArguments {
  CertificateAuthorityPlace place;
  std::string user;
  std::uint16_t port = 0;  // 0: that of the existing agent.toml, else kDefaultAgentPort.
  std::string out;         // Empty: where ivyrun looks, config_directory.
  int days = 90;
};
Result<std::string> make_user_certificate(const UserCertificateArguments& arguments);

// renew HOST | --user NAME [--out DIR] [--days N]: a new key and certificate with the names of the
// last one, in its place; agent.toml stays as it is. The old certificate stays valid.
struct RenewArguments {
  CertificateAuthorityPlace place;
  std::string host;  // Exactly one of the two.
  std::string user;
  std::string out;  // Empty: where the last one was written.
  int days = 0;     // 0: 365 for a host, 90 for a user.
};
Result<std::string> renew_certificate(const RenewArguments& arguments);

// revoke HOST | --user NAME | --serial S: all certificates of that name that have not expired, and
// a new ca.crl.
struct RevokeArguments {
  CertificateAuthorityPlace place;
  std::string host;  // Exactly one of the three.
  std::string user;
  std::string serial;
};
Result<std::string> revoke_certificates(const RevokeArguments& arguments);

// certs: a table, with warnings before a certificate or the CA expires.
struct ListCertificatesArguments {
  CertificateAuthorityPlace place;
};
Result<std::string> list_certificates(const ListCertificatesArguments& arguments);

}  // namespace ivy
