{{/* What pods of every kind have in common: dict "root" $ "component" "server". */}}
{{- define "sis.pod" -}}
{{- $values := .root.Values -}}
{{- $affinity := ternary dict $values.affinity (eq .component "test") -}}
{{- $placed := ne .component "redis" -}}
serviceAccountName: {{ include "sis.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml $values.podSecurityContext | nindent 2 }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if $placed }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of the form replicas: the spec of a server's pod. */}}
{{- define "sis.serverPod" -}}
{{- $server := dict "root" . "component" "server" -}}
{{ include "sis.pod" $server }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "sis.selector" $server | nindent 8 }}
  {{- end }}
terminationGracePeriodSeconds: {{ add .Values.shutdownGraceSeconds 15 }}
{{- with .Values.extraInitContainers }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - {{ include "sis.container" . | nindent 4 | trim }}
  {{- if include "sis.proxied" . }}
  {{- include "sis.proxyContainer" . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "sis.volumes" . }}
volumes: {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Metadata of a pod template. */}}
{{- define "sis.podMetadata" -}}
labels:
  {{- include "sis.selector" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := .root.Values.podAnnotations -}}
{{- if and (include "sis.proxied" .root) (eq .component "server") -}}
{{- /* HAProxy reads its files once. */ -}}
{{- $checksum := print (include "sis.proxyConfiguration" .root) (include "sis.proxyRenewal" .root) | sha256sum -}}
{{- $annotations = merge (dict "checksum/proxy" $checksum) $annotations -}}
{{- end -}}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
