// SPDX-License-Identifier: Apache-2.0
#include "tests/support/certificate_issue.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/objects.h>
#include <openssl/rand.h>

#include <array>

#include "proto/contract/text.h"
#include "proto/trust/libcrypto.h"

namespace ivy {
namespace {

constexpr int kSerialBytes = 16;
constexpr std::size_t kMaxCommonName = 64;  // ub-common-name of RFC 5280.

// For calls that fail only when memory is exhausted.
void must(int done) { IVY_ASSERT(done == 1); }

Key make_key() {
  Key key(EVP_EC_gen("P-256"));
  IVY_ASSERT(key != nullptr);
  return key;
}

struct Signer {
  Key key;
  Certificate certificate;
};

Result<Certificate> read_authority_certificate(const std::string& pem) {
  Certificate certificate = read_pem_certificate(pem);
  ERR_clear_error();
  if (!certificate) {
    return Error{Code::kFailedPrecondition, "the CA's certificate is damaged",
                 "restore ca.crt from a backup"};
  }
  return certificate;
}

Result<Signer> read_authority(const KeyAndCertificate& texts) {
  Signer authority;
  authority.certificate = IVY_TRY(read_authority_certificate(texts.certificate_pem));
  authority.key = read_pem_key(texts.key_pem);
  ERR_clear_error();
  if (!authority.key) {
    return Error{Code::kFailedPrecondition, "the CA's key is damaged or has a passphrase",
                 "restore ca.key from a backup, without a passphrase"};
  }
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1) {
    ERR_clear_error();
    return Error{Code::kFailedPrecondition, "the CA's key and certificate do not belong together",
                 "restore ca.key and ca.crt from the same backup"};
  }
  return authority;
}

void set_serial(X509* certificate) {
  std::array<unsigned char, kSerialBytes> bytes{};
  must(RAND_bytes(bytes.data(), kSerialBytes));
  bytes[0] |= 0x40;  // Never zero, and always the same number of digits.
  bytes[0] &= 0x7f;
  const BigNumber number(BN_bin2bn(bytes.data(), kSerialBytes, nullptr));
  IVY_ASSERT(number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)));
}

Time make_time(std::int64_t unix_s) {
  Time time(ASN1_TIME_set(nullptr, static_cast<std::time_t>(unix_s)));
  IVY_ASSERT(time != nullptr);
  return time;
}

void set_common_name(X509* certificate, const std::string& name) {
  if (name.empty() || name.size() > kMaxCommonName) return;
  must(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                  reinterpret_cast<const unsigned char*>(name.data()),
                                  static_cast<int>(name.size()), -1, 0));
}

// `value` is in OpenSSL's extension syntax and must not contain names.
void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_nconf_nid(nullptr, &context, nid, value.c_str()));
  IVY_ASSERT(extension != nullptr);
  must(X509_add_ext(certificate, extension.get(), -1));
}

// Takes ownership of `value`. Names are external texts, so they do not go through add_extension().
void add_name(GENERAL_NAMES* names, int type, ASN1_STRING* value) {
  GENERAL_NAME* const name = GENERAL_NAME_new();
  IVY_ASSERT(value != nullptr && name != nullptr);  // Fails only when memory runs out.
  GENERAL_NAME_set0_value(name, type, value);
  sk_GENERAL_NAME_push(names, name);
}

ASN1_STRING* ia5_text(const std::string& text) {
  ASN1_IA5STRING* const string = ASN1_IA5STRING_new();
  IVY_ASSERT(string != nullptr &&
             ASN1_STRING_set(string, text.data(), static_cast<int>(text.size())) == 1);
  return string;
}

Result<void> add_names(X509* certificate, const CertificateRequest& request) {
  const Names names(sk_GENERAL_NAME_new_null());
  for (const std::string& uri : request.uris) add_name(names.get(), GEN_URI, ia5_text(uri));
  for (const std::string& dns : request.dns_names) add_name(names.get(), GEN_DNS, ia5_text(dns));
  for (const std::string& address : request.addresses) {
    ASN1_OCTET_STRING* const octets = a2i_IPADDRESS(address.c_str());
    ERR_clear_error();
    if (octets == nullptr)
      return Error{Code::kInternal, "\"" + address + "\" is not a numeric address"};
    add_name(names.get(), GEN_IPADD, octets);
  }
  if (sk_GENERAL_NAME_num(names.get()) == 0) return {};
  // Without a subject, the alternative names are critical: RFC 5280, 4.1.2.6.
  const int critical = X509_NAME_entry_count(X509_get_subject_name(certificate)) == 0 ? 1 : 0;
  must(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), critical, 0));
  return {};
}

void add_usages(X509* certificate, const std::vector<std::string>& usages) {
  const std::string text = joined(usages, ",");
  if (!text.empty()) add_extension(certificate, nullptr, NID_ext_key_usage, text);
}

Certificate start_certificate(const Key& key, std::int64_t not_before, std::int64_t not_after) {
  Certificate certificate(X509_new());
  IVY_ASSERT(certificate != nullptr);
  must(X509_set_version(certificate.get(), X509_VERSION_3));
  set_serial(certificate.get());
  must(X509_set1_notBefore(certificate.get(), make_time(not_before).get()));
  must(X509_set1_notAfter(certificate.get(), make_time(not_after).get()));
  must(X509_set_pubkey(certificate.get(), key.get()));
  return certificate;
}

KeyAndCertificate signed_texts(const Key& key, X509* certificate, EVP_PKEY* signer) {
  IVY_ASSERT(X509_sign(certificate, signer, EVP_sha256()) > 0);
  const Bio key_text(BIO_new(BIO_s_secmem()));
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  must(PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr));
  must(PEM_write_bio_X509(certificate_text.get(), certificate));
  return {take_text(key_text), take_text(certificate_text)};
}

// `entry` contains a serial that set_serial() has drawn.
void add_revoked(X509_CRL* list, const RevokedSerial& entry) {
  BIGNUM* digits = nullptr;
  IVY_ASSERT(BN_hex2bn(&digits, entry.serial.c_str()) != 0);
  const BigNumber number(digits);
  const Integer serial(BN_to_ASN1_INTEGER(number.get(), nullptr));
  X509_REVOKED* const revoked = X509_REVOKED_new();
  IVY_ASSERT(revoked != nullptr && serial != nullptr);
  must(X509_REVOKED_set_serialNumber(revoked, serial.get()));
  must(X509_REVOKED_set_revocationDate(revoked, make_time(entry.revoked_at).get()));
  must(X509_CRL_add0_revoked(list, revoked));
}

void add_list_extensions(X509_CRL* list, X509* authority, std::int64_t number) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, authority, nullptr, nullptr, list, 0);
  const Extension issuer(
      X509V3_EXT_nconf_nid(nullptr, &context, NID_authority_key_identifier, "keyid:always"));
  const Integer value(ASN1_INTEGER_new());
  IVY_ASSERT(issuer && value);
  must(X509_CRL_add_ext(list, issuer.get(), -1));
  must(ASN1_INTEGER_set_int64(value.get(), number));
  must(X509_CRL_add1_ext_i2d(list, NID_crl_number, value.get(), 0, 0));
}

}  // namespace

KeyAndCertificate make_authority(const std::string& name, std::int64_t not_before,
                                 std::int64_t not_after) {
  const Key key = make_key();
  const Certificate certificate = start_certificate(key, not_before, not_after);
  X509* const self = certificate.get();
  set_common_name(self, name);
  must(X509_set_issuer_name(self, X509_get_subject_name(self)));
  add_extension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(self, self, NID_subject_key_identifier, "hash");
  return signed_texts(key, self, key.get());
}

Result<KeyAndCertificate> issue_certificate(const KeyAndCertificate& authority_texts,
                                            const CertificateRequest& request) {
  const Signer authority = IVY_TRY(read_authority(authority_texts));
  const Key key = make_key();
  const Certificate certificate = start_certificate(key, request.not_before, request.not_after);
  X509* const leaf = certificate.get();
  X509* const ca = authority.certificate.get();
  set_common_name(leaf, request.common_name);
  must(X509_set_issuer_name(leaf, X509_get_subject_name(ca)));
  add_extension(leaf, ca, NID_basic_constraints, "critical,CA:FALSE");
  add_extension(leaf, ca, NID_key_usage, "critical,digitalSignature");
  add_extension(leaf, ca, NID_subject_key_identifier, "hash");
  add_extension(leaf, ca, NID_authority_key_identifier, "keyid:always");
  add_usages(leaf, request.extended_usages);
  IVY_CHECK(add_names(leaf, request));
  return signed_texts(key, leaf, authority.key.get());
}

Result<std::string> sign_revocation_list(const KeyAndCertificate& authority_texts,
                                         const std::vector<RevokedSerial>& revoked,
                                         const RevocationListDates& dates) {
  const Signer authority = IVY_TRY(read_authority(authority_texts));
  X509* const ca = authority.certificate.get();
  const RevocationList list(X509_CRL_new());
  IVY_ASSERT(list != nullptr);
  must(X509_CRL_set_version(list.get(), X509_CRL_VERSION_2));
  must(X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(ca)));
  must(X509_CRL_set1_lastUpdate(list.get(), make_time(dates.last_update).get()));
  must(X509_CRL_set1_nextUpdate(list.get(), make_time(dates.next_update).get()));
  for (const RevokedSerial& entry : revoked) add_revoked(list.get(), entry);
  add_list_extensions(list.get(), ca, dates.number);
  X509_CRL_sort(list.get());
  IVY_ASSERT(X509_CRL_sign(list.get(), authority.key.get(), EVP_sha256()) > 0);
  const Bio bio(BIO_new(BIO_s_mem()));
  must(PEM_write_bio_X509_CRL(bio.get(), list.get()));
  return take_text(bio);
}

}  // namespace ivy
