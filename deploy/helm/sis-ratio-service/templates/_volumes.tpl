{{/* What the server has mounted, one per line. */}}
{{- define "sis.mounts" -}}
{{- $mounts := list -}}
{{- if eq .Values.form "sidecar" -}}
{{- $mounts = append $mounts "- {name: socket, mountPath: /run/sis}" -}}
{{- else if eq (include "sis.hasVolume" .) "true" -}}
{{- $mounts = append $mounts "- {name: store, mountPath: /var/lib/sis}" -}}
{{- end -}}
{{- if .Values.security.tlsSecret -}}
{{- $mounts = append $mounts "- {name: tls, mountPath: /etc/sis/tls, readOnly: true}" -}}
{{- end -}}
{{- if .Values.security.identitiesSecret -}}
{{- $mounts = append $mounts "- {name: identities, mountPath: /etc/sis/identities, readOnly: true}" -}}
{{- end -}}
{{- if .Values.store.redis.passwordSecret -}}
{{- $mounts = append $mounts "- {name: redis, mountPath: /etc/sis/redis, readOnly: true}" -}}
{{- end -}}
{{- if .Values.store.redis.caSecret -}}
{{- $mounts = append $mounts "- {name: authority, mountPath: /etc/sis/authority, readOnly: true}" -}}
{{- end -}}
{{- with .Values.extraVolumeMounts -}}
{{- $mounts = append $mounts (toYaml .) -}}
{{- end -}}
{{- join "\n" $mounts -}}
{{- end -}}

{{/* Whether each server has a volume claim, for RocksDB. */}}
{{- define "sis.hasVolume" -}}
{{- and (eq .Values.form "replicas") (eq .Values.store.kind "rocksdb") -}}
{{- end -}}

{{/* Of the servers' pods, but for volume claims. */}}
{{- define "sis.volumes" -}}
{{- $secret := "- name: %s\n  secret: {secretName: %s, defaultMode: 0440}" -}}
{{- $volumes := list -}}
{{- if eq .Values.form "sidecar" -}}
{{- $volumes = append $volumes "- name: socket\n  emptyDir: {medium: Memory, sizeLimit: 1Mi}" -}}
{{- end -}}
{{- with .Values.security.tlsSecret -}}
{{- $volumes = append $volumes (printf $secret "tls" .) -}}
{{- end -}}
{{- with .Values.security.identitiesSecret -}}
{{- $volumes = append $volumes (printf $secret "identities" .) -}}
{{- end -}}
{{- with .Values.store.redis.passwordSecret -}}
{{- $volumes = append $volumes (printf $secret "redis" .) -}}
{{- end -}}
{{- with .Values.store.redis.caSecret -}}
{{- $volumes = append $volumes (printf $secret "authority" .) -}}
{{- end -}}
{{- if include "sis.proxied" . -}}
{{- $volumes = append $volumes (printf "- name: proxy\n  configMap: {name: %s-proxy}" (include "sis.name" .)) -}}
{{- end -}}
{{- with .Values.extraVolumes -}}
{{- $volumes = append $volumes (toYaml .) -}}
{{- end -}}
{{- join "\n" $volumes -}}
{{- end -}}
